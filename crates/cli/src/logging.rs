//! Structured logs on standard error, with levels that can be changed at run time.

use crate::Failure;
use crate::log_writer::{LogWriter, Stream};
use server::admin::LogControl;
use server::config::LogFormat;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// Levels by module; the empty name is the default.
type Levels = BTreeMap<String, String>;

/// How long the end of the process waits until all lines are written.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The writer of all output of the process, once logging has started.
static WRITER: OnceLock<LogWriter> = OnceLock::new();

/// Waits until all lines are written, for at most [`FLUSH_LIMIT`].
pub fn flush() {
    if let Some(writer) = WRITER.get() {
        writer.flush(FLUSH_LIMIT);
    }
}

/// Prints to standard output or standard error, in the order of the log. False: logging has not
/// started.
pub fn print(stream: Stream, text: Arguments<'_>) -> bool {
    let writer = WRITER.get();
    writer.inspect(|writer| writer.line(stream, text.to_string().as_bytes())).is_some()
}

/// Installs a panic hook that writes the panic message to the log and then ends the process, in
/// every build: state that a panic left half changed must not be served or written.
fn abort_on_panics(writer: LogWriter) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let backtrace = Backtrace::capture();
        let mut text = format!("thread '{}' {panic}\n", thread.name().unwrap_or("<unnamed>"));
        match backtrace.status() {
            BacktraceStatus::Captured => text += &format!("stack backtrace:\n{backtrace}\n"),
            _ => text += "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
        }
        writer.line(Stream::Error, text.as_bytes());
        writer.flush(FLUSH_LIMIT);
        std::process::abort();
    }));
}

/// Starts logging. `levels` is `info` or `info,module=debug,...`.
pub fn start(levels: &str, format: LogFormat) -> Result<LogControl, Failure> {
    let levels = parse(levels)?;
    let (changeable, handle) = reload::Layer::new(filter(&levels)?);
    let writer = LogWriter::start()?;
    let lines_to = writer.clone();
    let lines_to = move || lines_to.clone();
    let terminal = std::io::stderr().is_terminal();
    let lines: Box<dyn Layer<_> + Send + Sync> = match format {
        LogFormat::Json => fmt::layer().json().with_writer(lines_to).boxed(),
        LogFormat::Auto => fmt::layer().with_ansi(terminal).with_writer(lines_to).boxed(),
        LogFormat::Text => fmt::layer().with_ansi(false).with_writer(lines_to).boxed(),
    };
    Registry::default().with(changeable).with(lines).try_init()?;
    abort_on_panics(writer.clone());
    let _ = WRITER.set(writer);
    server::stopping::before_exit(flush);
    let levels = Mutex::new(levels);
    Ok(Arc::new(move |name, level| {
        let mut levels = levels.lock().unwrap_or_else(PoisonError::into_inner);
        let key = if name == "root" { "" } else { name };
        let Some(level) = level else {
            let known = levels.get(key).or_else(|| levels.get(""));
            return Ok(known.cloned().unwrap_or_else(|| "off".to_owned()));
        };
        let mut wanted = levels.clone();
        let level = level.to_ascii_lowercase();
        is_level(&level)?;
        wanted.insert(key.to_owned(), level.clone());
        let filter = filter(&wanted).map_err(|Failure { why, .. }| why)?;
        handle.reload(filter).map_err(|error| error.to_string())?;
        *levels = wanted;
        Ok(level)
    }))
}

fn parse(text: &str) -> Result<Levels, Failure> {
    let mut levels = Levels::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, level) = part.split_once('=').unwrap_or(("", part));
        let level = level.trim().to_ascii_lowercase();
        is_level(&level).map_err(|why| Failure::new(format!("log_level: {why}")))?;
        levels.insert(name.trim().to_owned(), level);
    }
    if levels.is_empty() {
        return Err(Failure::new(format!("log_level: '{text}' has no level")));
    }
    Ok(levels)
}

fn is_level(level: &str) -> Result<(), String> {
    match level {
        "off" | "error" | "warn" | "info" | "debug" | "trace" => Ok(()),
        _ => Err(format!("'{level}' is not a log level: off, error, warn, info, debug or trace")),
    }
}

fn filter(levels: &Levels) -> Result<EnvFilter, Failure> {
    let mut directives: Vec<String> = levels
        .iter()
        .map(|(name, level)| if name.is_empty() { level.clone() } else { format!("{name}={level}") })
        .collect();
    // The internode transport logs undelivered messages in fewer words than openraft.
    if !levels.keys().any(|name| name.starts_with("openraft")) {
        directives.push("openraft=off".to_owned());
    }
    Ok(EnvFilter::try_new(directives.join(","))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_checked() {
        assert!(parse("").is_err());
        let levels = parse("info, server::connection=debug").unwrap_or_default();
        assert_eq!(levels.len(), 2);
        assert!(filter(&levels).is_ok());
        let Err(Failure { why, .. }) = parse("info,server=loud") else { panic!("no level") };
        assert_eq!(why, "log_level: 'loud' is not a log level: off, error, warn, info, debug or trace");
        assert_eq!(parse("DEBUG,server=Trace").unwrap_or_default(), parse("debug,server=trace").unwrap_or_default());
        assert_eq!(parse("DEBUG").unwrap_or_default().get("").map(String::as_str), Some("debug"));
    }
}
