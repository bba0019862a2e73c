//! The sorted file: write, read, verify.
