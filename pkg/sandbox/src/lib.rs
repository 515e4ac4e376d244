//! What server, operator and agent share about a sandbox: the tokens that guard it, the bodies that travel to it, and
//! (feature `pod`) the one builder of its pod.

#[cfg(feature = "pod")]
pub mod pod;
pub mod token;
pub mod wire;
