//! The time limit of a stop. When it has passed, the process logs the current phase of the stop,
//! and ends.
//!
//! Like kill -9, this loses no acknowledged write: the next start replays the commitlog.
//! Acknowledged writes may be missing only if the commitlog could not be written. Replicas may lack
//! writes without a record of that only if the record could not be written. The last log line says
//! whether acknowledged writes, or records of missed writes, may be lost.

use engine::{LogLeft, Unwritten};
use model::HostId;
use rt::sync::watch;
use rt::time::Duration;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use thiserror::Error;

/// The exit status of a process that failed, or that did not stop in time.
pub const FAILED: u8 = 1;
/// The exit status of a stop that could not write all memtables. All acknowledged writes are on
/// disk: the next start replays more of the commitlog.
pub const REPLAYS: u8 = 3;

static BEFORE_EXIT: OnceLock<fn()> = OnceLock::new();

/// Registers `run`, which [`exit`] calls first. It writes the remaining log lines within a bounded
/// time.
pub fn before_exit(run: fn()) {
    let _ = BEFORE_EXIT.set(run);
}

/// Ends the process.
pub(crate) fn exit(status: u8) -> ! {
    if let Some(run) = BEFORE_EXIT.get() {
        run();
    }
    std::process::exit(status.into())
}

/// The data that a stop could not write. The texts are for the operator.
#[derive(Debug, Error)]
pub enum StopError {
    /// Acknowledged writes may not be on disk.
    #[error("{0}")]
    MayLackWrites(String),
    /// All acknowledged writes are on disk, some of them only in the commitlog.
    #[error("{0}")]
    Replays(String),
}

impl StopError {
    /// With which status the process ends.
    pub fn exit_status(&self) -> u8 {
        match self {
            StopError::MayLackWrites(_) => FAILED,
            StopError::Replays(_) => REPLAYS,
        }
    }

    /// The text if it could not be recorded that these nodes miss writes.
    pub(crate) fn unrecorded(nodes: &BTreeSet<HostId>) -> Option<String> {
        let names = nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        (!nodes.is_empty()).then(|| {
            format!(
                "the disk failed to record that these nodes may miss acknowledged writes: {names}. For each of them, run \
                 `messina admin resync NODE --force`"
            )
        })
    }

    /// An error if a shard could not write something until it stopped.
    pub(crate) fn of(shards: Vec<Unwritten>) -> Result<(), StopError> {
        let tables: BTreeSet<&String> = shards.iter().flat_map(|shard| &shard.tables).collect();
        let tables = tables.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let left_of =
            |wanted: fn(&LogLeft) -> Option<&String>| shards.iter().find_map(|shard| wanted(shard.log.as_ref()?));
        let not_ended = left_of(|log| if let LogLeft::NotEnded(why) = log { Some(why) } else { None });
        if let Some(why) = left_of(|log| if let LogLeft::MayLackWrites(why) = log { Some(why) } else { None }) {
            let also = if tables.is_empty() {
                String::new()
            } else {
                format!(", nor could the memtables of {tables} be flushed")
            };
            return Err(StopError::MayLackWrites(format!(
                "the commitlog could not be written to its end ({why}){also}: the last writes may not be on disk"
            )));
        }
        let mut left = Vec::new();
        if !tables.is_empty() {
            left.push(format!(
                "the memtables of {tables} could not be flushed; their writes are in the commitlog and are replayed at the next start"
            ));
        }
        left.extend(not_ended.map(|why| {
            format!("the commitlog could not be closed ({why}); all writes are on disk, and the next start replays it")
        }));
        let removed = left_of(|log| if let LogLeft::Removed { what, .. } = log { Some(what) } else { None });
        left.extend(
            removed.map(|what| format!("{what}; all writes are on disk, because they were flushed to sstables")),
        );
        if left.is_empty() { Ok(()) } else { Err(StopError::Replays(format!("stopped, but {}", left.join("; ")))) }
    }
}

/// The phase of a stop, for the log line if the stop takes too long.
#[derive(Clone, Debug, Default)]
pub struct Phase(Arc<Mutex<&'static str>>);

impl Phase {
    /// From now on the stop does this.
    pub fn enter(&self, phase: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        tracing::debug!(phase, "stopping");
    }

    fn get(&self) -> &'static str {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the process if a stop takes too long. Its thread starts with the node, because a node that
/// must stop may have no descriptors or threads left.
pub struct StopClock(mpsc::Sender<Limit>);

/// The message to the thread of a [`StopClock`] when a stop begins.
struct Limit {
    limit: Duration,
    phase: Phase,
    log_failed: Arc<AtomicBool>,
}

/// The last log line of a node that did not stop in time.
fn cut_off_line(log_failed: bool) -> &'static str {
    match log_failed {
        false => {
            "the node did not stop in time (shutdown_timeout_in_ms): the process ends. No acknowledged write is \
             missing: the next start replays the commitlog"
        }
        true => {
            "the node did not stop in time (shutdown_timeout_in_ms): the process ends. Acknowledged writes may be \
             missing, because the commitlog could not be written"
        }
    }
}

impl StopClock {
    /// Starts the thread, which waits for a stop to begin.
    #[allow(clippy::disallowed_methods, reason = "must run when no shard does")]
    pub fn start() -> io::Result<StopClock> {
        let (begin, begun) = mpsc::channel();
        thread::Builder::new().name("stop-limit".to_owned()).spawn(move || {
            let Ok(Limit { limit, phase, log_failed }) = begun.recv() else { return };
            if matches!(begun.recv_timeout(limit), Err(RecvTimeoutError::Timeout)) {
                let phase = Phase::get(&phase);
                tracing::error!(phase, ?limit, "{}", cut_off_line(log_failed.load(Ordering::Relaxed)));
                exit(FAILED);
            }
        })?;
        Ok(StopClock(begin))
    }
}

/// A stop under way. The limit holds until this is dropped.
pub struct Stopping {
    /// The current phase of the stop.
    pub phase: Phase,
    _clock: StopClock,
}

impl Stopping {
    /// Begins a stop that may take `limit`. `failures` says whether the commitlog has failed.
    pub fn begin(clock: StopClock, limit: Duration, failures: &FailureReceiver) -> Stopping {
        let phase = Phase::default();
        phase.enter("waiting for shard 0");
        let log_failed = failures.log_failed.clone();
        if clock.0.send(Limit { limit, phase: phase.clone(), log_failed }).is_err() {
            tracing::warn!("the stop has no time limit: the thread that enforces it has ended");
        }
        Stopping { phase, _clock: clock }
    }
}

/// Reports that the node has failed, from any shard. The node stops then, in order, as upon a
/// signal.
#[derive(Clone, Debug)]
pub struct FailureSender {
    first: Arc<watch::Sender<Option<String>>>,
    log_failed: Arc<AtomicBool>,
}

/// Receives the failure of the node.
pub struct FailureReceiver {
    first: watch::Receiver<Option<String>>,
    /// The commitlog of a shard could not be written.
    log_failed: Arc<AtomicBool>,
}

/// Both ends of the channel that reports the failure of the node.
pub fn failure_channel() -> (FailureSender, FailureReceiver) {
    let (sender, receiver) = watch::channel(None);
    let log_failed = Arc::<AtomicBool>::default();
    let receiver = FailureReceiver { first: receiver, log_failed: log_failed.clone() };
    (FailureSender { first: Arc::new(sender), log_failed }, receiver)
}

impl FailureSender {
    /// The node has failed and must stop. Of several failures the first is reported.
    pub fn send(&self, why: String) {
        self.first.send_if_modified(|known| known.is_none() && known.replace(why).is_none());
    }

    /// Like [`FailureSender::send`], for a commitlog that cannot be written any more. Also records
    /// that acknowledged writes may be missing.
    pub fn send_log_failure(&self, why: String) {
        self.log_failed.store(true, Ordering::Relaxed);
        self.send(why);
    }
}

impl FailureReceiver {
    /// Waits until the node has failed. Returns the reason.
    pub async fn recv(&mut self) -> String {
        let why = self.first.wait_for(Option::is_some).await.map(|why| why.clone().unwrap_or_default());
        match why {
            Ok(why) => why,
            // All senders were dropped, so no failure can follow.
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::commitlog::OldRun;
    use rt::ShardId;

    fn left(tables: &[&str], log: Option<LogLeft>) -> Unwritten {
        Unwritten { tables: tables.iter().map(|table| table.to_string()).collect(), log }
    }

    #[test]
    fn errors_distinguish_writes_to_replay_from_writes_that_may_be_lost() {
        assert!(StopError::of(vec![left(&[], None), left(&[], None)]).is_ok());
        let of = |shards| StopError::of(shards).expect_err("something is left");
        let (full, broken) = ("no space".to_owned(), "fsync failed".to_owned());

        let manifest = of(vec![left(&[], None), left(&[], Some(LogLeft::NotEnded(full.clone())))]);
        assert_eq!(manifest.exit_status(), REPLAYS);
        let text = manifest.to_string();
        assert!(text.contains("all writes are on disk") && !text.contains("may not be on disk"), "{text}");

        let both = of(vec![left(&["k.b", "k.a"], None), left(&["k.a"], Some(LogLeft::NotEnded(full.clone())))]);
        assert_eq!(both.exit_status(), REPLAYS);
        assert!(both.to_string().contains("memtables of k.a, k.b could") && both.to_string().contains(&full), "{both}");

        let run = OldRun { shard: ShardId(0), run: 7, dir: "commitlog/0/run-7".into() };
        let removed = of(vec![left(&[], Some(LogLeft::Removed { what: "segment-7 was removed".into(), run }))]);
        assert_eq!(removed.exit_status(), REPLAYS);
        let text = removed.to_string();
        assert!(
            text.contains("segment-7") && text.contains("all writes are on disk") && !text.contains("replay"),
            "{text}"
        );

        let lost =
            of(vec![left(&["k.a"], Some(LogLeft::NotEnded(full))), left(&[], Some(LogLeft::MayLackWrites(broken)))]);
        assert_eq!(lost.exit_status(), FAILED);
        let text = lost.to_string();
        assert!(text.contains("fsync failed") && text.contains("k.a") && text.contains("may not be on disk"), "{text}");
    }

    #[test]
    fn nodes_whose_missed_writes_are_not_on_disk_are_named() {
        assert_eq!(StopError::unrecorded(&BTreeSet::new()), None);
        let node = HostId(uuid::Uuid::from_u128(7));
        let text = StopError::unrecorded(&BTreeSet::from([node])).expect("an error");
        assert!(text.contains(&node.to_string()) && text.contains("resync NODE --force"), "{text}");
    }

    #[test]
    fn the_first_failure_is_reported() {
        rt::block_on(async {
            let (sender, mut receiver) = failure_channel();
            sender.send("first".into());
            assert!(!receiver.log_failed.load(Ordering::Relaxed));
            sender.clone().send_log_failure("second".into());
            assert_eq!(receiver.recv().await, "first");
            assert!(receiver.log_failed.load(Ordering::Relaxed), "it counts although it is not reported");
        });
    }

    #[test]
    fn the_last_line_says_whether_writes_may_be_missing() {
        assert!(cut_off_line(false).contains("No acknowledged write is missing"));
        assert!(cut_off_line(true).contains("Acknowledged writes may be missing"));
    }
}
