//! The tests of the binary's commands, one module for each subject.
//!
//! They are one program, because linking one for each file takes minutes.

mod inspect;
mod serve;
