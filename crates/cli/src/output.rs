//! What commands print. `println!` panics where standard output or standard error cannot be written, such as on a full disk:
//! here a command ends with status 1 then, and a node with the status that it was to end with.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Prints a line to standard output. If that fails the process ends with status 1.
macro_rules! say {
    ($($part:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints a line to standard error, if that can be written.
macro_rules! complain {
    ($($part:tt)*) => { $crate::output::print_error(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints to standard output. If that fails the process ends with status 1.
pub fn print(text: Arguments<'_>) {
    if let Err(error) = io::stdout().lock().write_fmt(text) {
        complain!("messina: {error}");
        std::process::exit(1);
    }
}

/// Prints to standard error, if that can be written: where it cannot, there is no other place to say so.
pub fn print_error(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}
