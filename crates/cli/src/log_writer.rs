//! Writes log lines in a separate thread, so that a slow reader of the log blocks no thread of the
//! node.
//!
//! The queue is bounded. Lines that do not fit are dropped and counted; the count is logged once
//! all that was queued is written.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The most bytes of lines that wait to be written.
const MAX_WAITING: usize = 4 << 20;

/// Where a line is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Error,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<(Stream, Vec<u8>)>,
    /// Bytes of `lines`.
    bytes: usize,
    /// The thread writes lines that it took from the queue.
    is_writing: bool,
    /// Lines that were dropped and not reported yet.
    dropped: u64,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts lines into the queue. As an [`io::Write`], each call is one event of the log, for standard
/// error.
#[derive(Clone)]
pub struct LogWriter(Arc<Shared>);

impl LogWriter {
    /// Starts the thread that writes to the process's standard output and standard error.
    pub fn start() -> io::Result<LogWriter> {
        let write = |stream, line: &[u8]| {
            // An error cannot be reported anywhere.
            let _ = match stream {
                Stream::Out => io::stdout().write_all(line).and_then(|()| io::stdout().flush()),
                Stream::Error => io::stderr().write_all(line),
            };
        };
        let report = |dropped| {
            tracing::warn!(dropped, "log lines were dropped, because they were not read or written in time");
        };
        LogWriter::start_with(write, report)
    }

    /// `write` writes one line. `report` logs how many lines were dropped.
    #[allow(clippy::disallowed_methods, reason = "shards must not wait for this thread")]
    fn start_with(
        mut write: impl FnMut(Stream, &[u8]) + Send + 'static,
        report: impl Fn(u64) + Send + 'static,
    ) -> io::Result<LogWriter> {
        let shared = Arc::<Shared>::default();
        let writer = LogWriter(shared.clone());
        thread::Builder::new().name("log-writer".to_owned()).spawn(move || {
            loop {
                let mut queue = shared.queue();
                while queue.lines.is_empty() && queue.dropped == 0 {
                    queue.is_writing = false;
                    shared.changed.notify_all();
                    queue = shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
                queue.is_writing = true;
                let lines = std::mem::take(&mut queue.lines);
                queue.bytes = 0;
                let dropped = if lines.is_empty() { std::mem::take(&mut queue.dropped) } else { 0 };
                drop(queue);
                lines.iter().for_each(|(stream, line)| write(*stream, line));
                if dropped > 0 {
                    report(dropped);
                }
            }
        })?;
        Ok(writer)
    }

    /// Queues a line. Drops and counts it if too much is queued.
    pub fn line(&self, stream: Stream, line: &[u8]) {
        let mut queue = self.0.queue();
        if queue.bytes + line.len() > MAX_WAITING {
            queue.dropped += 1;
            return;
        }
        queue.bytes += line.len();
        queue.lines.push_back((stream, line.to_vec()));
        drop(queue);
        self.0.changed.notify_all();
    }

    /// Waits until all lines are written, but not longer than `limit`. Says whether they are.
    pub fn flush(&self, limit: Duration) -> bool {
        let is_busy = |queue: &mut Queue| queue.is_writing || !queue.lines.is_empty() || queue.dropped > 0;
        let queue = self.0.queue();
        let waited = self.0.changed.wait_timeout_while(queue, limit, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// The event with the characters escaped that would end its line before its end. If the line
/// contains a text of a client, that text must not look like another event.
fn on_one_line(event: &[u8]) -> Cow<'_, [u8]> {
    // The formatter escapes ESC in texts, and uses it for colours.
    let ends_line = |c: char| (c.is_control() && !matches!(c, '\t' | '\x1b')) || matches!(c, '\u{2028}' | '\u{2029}');
    let text = String::from_utf8_lossy(event);
    let (body, end) = text.strip_suffix('\n').map_or((&*text, ""), |body| (body, "\n"));
    if !body.contains(ends_line) {
        return Cow::Borrowed(event);
    }
    let mut line = String::with_capacity(event.len() + 16);
    for c in body.chars() {
        if ends_line(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line += end;
    Cow::Owned(line.into_bytes())
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.line(Stream::Error, &on_one_line(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_event_is_one_line() {
        let plain = "\x1b[33m WARN\x1b[0m a\tkey: ключ\n".as_bytes();
        assert!(matches!(on_one_line(plain), Cow::Borrowed(line) if line == plain));
        let forged = "WARN key=x\n2026 ERROR\r\u{85}\u{2028}y\0\n".as_bytes();
        let line = String::from_utf8(on_one_line(forged).into_owned()).expect("text");
        assert_eq!(line, "WARN key=x\\n2026 ERROR\\r\\u{85}\\u{2028}y\\u{0}\n");
    }

    #[test]
    fn a_reader_that_does_not_read_delays_no_writer() {
        let (reads, read) = mpsc::channel::<()>();
        let (written, lines) = mpsc::channel();
        let reported = Arc::new(AtomicU64::new(0));
        let report = reported.clone();
        let write = move |stream, line: &[u8]| {
            // The reader waits until the sender is dropped.
            let _ = read.recv();
            let _ = written.send((stream, line.len()));
        };
        let writer =
            LogWriter::start_with(write, move |dropped| report.store(dropped, Ordering::SeqCst)).expect("started");
        writer.line(Stream::Out, b"ready\n");
        assert!(!writer.flush(SOON), "the line is not read yet");
        let line = vec![b'x'; 1 << 20];
        for _ in 0..10 {
            writer.clone().write_all(&line).expect("never fails");
        }
        assert!(!writer.flush(SOON));
        drop(reads);
        assert!(writer.flush(LONG), "all that was kept is written");
        assert_eq!(
            lines.try_iter().collect::<Vec<_>>(),
            [
                (Stream::Out, 6),
                (Stream::Error, 1 << 20),
                (Stream::Error, 1 << 20),
                (Stream::Error, 1 << 20),
                (Stream::Error, 1 << 20),
            ]
        );
        assert_eq!(reported.load(Ordering::SeqCst), 6, "dropped lines are reported");
        writer.line(Stream::Error, b"again\n");
        assert!(writer.flush(LONG));
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), [(Stream::Error, 6)]);
    }
}
