//! What the chaos test is made of: faults, the load that runs through them, and what must hold after each.

pub mod balancer;
pub mod deletion;
pub mod fault;
pub mod gate;
pub mod gauge;
pub mod history;
pub mod invariants;
pub mod lease;
pub mod load;
pub mod node;
pub mod order;
pub mod partition;
pub mod trend;
pub mod witness;
