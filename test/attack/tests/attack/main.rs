//! Attacks from inside a sandbox. `make test-attack` starts a cluster, installs the operator and runs these. The comment
//! on each test becomes its row in `docs/security.md`.

mod credentials;
mod exhaustion;
mod hostile_data;
mod identity;
mod limits;
mod network;
mod own_pod;
mod peers;
mod probe;
mod requests;
