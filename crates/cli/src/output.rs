//! The output of commands. `println!` panics if standard output or standard error cannot be
//! written, such as on a full disk. With these functions, a command ends with status 1 then, and a
//! node with its regular status. A pipe that is closed by its reader ends a command quietly.

use crate::log_writer::Stream;
use crate::logging;
use serde_json::Value;
use std::fmt::Arguments;
use std::io::{self, StdoutLock, Write};

/// Prints a line to standard output. If that fails, the process ends: see [`print`].
macro_rules! say {
    ($($part:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints a line to standard error. Errors are ignored.
macro_rules! complain {
    ($($part:tt)*) => { $crate::output::print_error(format_args!("{}\n", format_args!($($part)*))) };
}

/// A value as text, without quotes.
pub fn plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Prints the answer of a node: as JSON, or as text. Every command of `messina admin` prints its
/// JSON here, even if the answer is `null`.
pub fn print_answer(answer: &Value, as_json: bool, text: impl FnOnce(&Value) -> String) {
    if as_json {
        say!("{answer}");
    } else {
        print(format_args!("{}", text(answer)));
    }
}

/// Prints to standard output. If that fails, the process ends: with status 0 if no process reads
/// the output any more, else with status 1.
pub fn print(text: Arguments<'_>) {
    if let Err(error) = Output::ending().write_fmt(text) {
        complain!("messina: {error}");
        std::process::exit(1);
    }
}

/// Standard output. A closed reader (`messina ... | head`) is not an error.
pub struct Output {
    to: StdoutLock<'static>,
    ends: bool,
}

impl Output {
    /// Without a reader, the process ends with status 0: the rest of the output has no reader.
    pub fn ending() -> Output {
        Output { to: io::stdout().lock(), ends: true }
    }

    /// Without a reader, output is dropped, and the command continues: its exit status matters,
    /// too.
    pub fn dropping() -> Output {
        Output { to: io::stdout().lock(), ends: false }
    }

    fn checked<T>(&self, outcome: io::Result<T>, dropped: T) -> io::Result<T> {
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                if self.ends {
                    std::process::exit(0);
                }
                Ok(dropped)
            }
            other => other,
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let outcome = self.to.write(bytes);
        self.checked(outcome, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let outcome = self.to.flush();
        self.checked(outcome, ())
    }
}

/// Prints to standard error. Errors are ignored, because they cannot be reported anywhere. A node
/// prints with its log, and does not wait for the reader of it.
pub fn print_error(text: Arguments<'_>) {
    if logging::print(Stream::Error, text) {
        return;
    }
    let _ = io::stderr().lock().write_fmt(text);
}
