//! End-to-end tests on a real cluster with enforced NetworkPolicies. `make test-e2e` starts one, installs the operator
//! and runs these.

mod conversation;
mod isolation;
mod lifecycle;
