//! The output of commands. `println!` panics if standard output or standard error cannot be
//! written, such as on a full disk. With these functions, a command ends with status 1 then, and a
//! node with its regular status.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Prints a line to standard output. If that fails, the process ends with status 1.
macro_rules! say {
    ($($part:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints a line to standard error. Errors are ignored.
macro_rules! complain {
    ($($part:tt)*) => { $crate::output::print_error(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints to standard output. If that fails, the process ends with status 1.
pub fn print(text: Arguments<'_>) {
    if let Err(error) = io::stdout().lock().write_fmt(text) {
        complain!("messina: {error}");
        std::process::exit(1);
    }
}

/// Prints to standard error. Errors are ignored, because they cannot be reported anywhere.
pub fn print_error(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}
