//! End-to-end tests on a real cluster with enforced NetworkPolicies. `make test-e2e` starts one, installs the operator
//! and runs these.

mod agent_pod;
mod conversation;
mod isolation;
mod lifecycle;
mod operator_admission;
mod operator_alone;
mod operator_metrics;
mod operator_openshift;
mod operator_pool;
mod operator_repair;
mod operator_rights;
mod operator_rotation;
mod operator_trouble;
mod plugin_check;
mod plugin_sessions;
mod proxy_kubectl;
mod server_access;
mod server_gate;
mod server_laptop;
mod server_replicas;
