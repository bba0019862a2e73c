//! The tests of connections between nodes through their public interface, one module for each
//! subject.
//!
//! They are one program, because linking one for each file takes minutes.

mod internode;
