//! The `messina` binary.
fn main() {}
