//! The slow query log: `system_traces.node_slow_log`, and its index by minute
//! `node_slow_log_time_idx`. Users of ScyllaDB know these tables.
//!
//! The log is off by default, and then costs a request one check of a flag. While it is on, every
//! request is traced, or only timed in the fast mode. Slow requests are written with their traces
//! after they are answered, as internal work of the node.
//!
//! Invariant: at most [`MAX_PENDING`] records of a shard wait to be written. Further slow requests
//! are not logged.
//! The same holds for traces that clients request ([`MAX_PENDING_TRACES`]).

use super::trace_store::{KEYSPACE, address, entries, row, write};
use coordinator::Coordinator;
use model::key::Clustering;
use model::mutation::MutationBuilder;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use uuid::Uuid;

/// The most records that may wait to be written on a shard.
const MAX_PENDING: usize = 1000;
/// Traces that clients asked for and that may wait to be written on a shard.
const MAX_PENDING_TRACES: usize = 1000;
/// The most bytes of the text of a statement that its record and its trace show.
pub(crate) const MAX_SHOWN_TEXT: usize = 16 << 10;
const MILLIS_PER_MINUTE: i64 = 60_000;

/// Which requests are logged. Set while the node runs and lost at a restart, as in ScyllaDB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowLogSettings {
    /// Whether any request is logged.
    pub enabled: bool,
    /// The minimum duration of a logged request, in microseconds.
    pub threshold_micros: u32,
    /// The TTL of a record, in seconds.
    pub ttl_seconds: i32,
    /// Fast mode: steps are not recorded.
    pub fast: bool,
}

impl Default for SlowLogSettings {
    fn default() -> Self {
        SlowLogSettings { enabled: false, threshold_micros: 500_000, ttl_seconds: 86_400, fast: false }
    }
}

/// The slow query log of a shard.
#[derive(Default)]
pub(crate) struct SlowLog {
    settings: Cell<SlowLogSettings>,
    /// Shared with all records that wait to be written; its reference count counts them.
    pending: Rc<()>,
    /// Shared with the traces that wait.
    pending_traces: Rc<()>,
}

/// The text of a statement as its record and its trace show it.
pub(crate) fn shown_text(text: &str) -> String {
    match text.len() > MAX_SHOWN_TEXT {
        true => format!("{}...", &text[..text.floor_char_boundary(MAX_SHOWN_TEXT)]),
        false => text.to_owned(),
    }
}

impl SlowLog {
    #[inline]
    pub fn settings(&self) -> SlowLogSettings {
        self.settings.get()
    }

    pub fn set(&self, settings: SlowLogSettings) {
        self.settings.set(settings);
    }

    /// Admits a request of this duration to the log if it is slow and fewer than [`MAX_PENDING`]
    /// records wait. The caller holds the token until the record is written.
    pub fn admit(&self, took_micros: u32) -> Option<Rc<()>> {
        let settings = self.settings.get();
        let slow = settings.enabled && took_micros >= settings.threshold_micros;
        (slow && Rc::strong_count(&self.pending) <= MAX_PENDING).then(|| self.pending.clone())
    }

    /// The right to write a trace that a client asked for, if there is room. Kept until it is
    /// written.
    pub fn admit_trace(&self) -> Option<Rc<()>> {
        let waiting = &self.pending_traces;
        (Rc::strong_count(waiting) <= MAX_PENDING_TRACES).then(|| waiting.clone())
    }
}

/// A slow request.
pub(crate) struct SlowRequest {
    /// The id of its trace, which contains the time at which the request began.
    pub session: Uuid,
    /// When the request began, in milliseconds since the epoch.
    pub started_at: i64,
    /// In microseconds.
    pub duration: u32,
    /// The statement. The statements of a batch are joined.
    pub command: String,
    /// As in the session of its trace.
    pub parameters: Vec<(String, String)>,
    /// The address of its client.
    pub client: Option<IpAddr>,
    /// The address of this node.
    pub node: IpAddr,
    /// The tables that it accessed, as `keyspace.table`.
    pub tables: Vec<String>,
    /// The role of its client.
    pub username: Option<String>,
}

/// Writes a record with a TTL of `ttl` seconds.
pub(crate) async fn save(coordinator: &Coordinator, request: SlowRequest, ttl: i32) {
    let metadata = coordinator.metadata();
    let table = |name| metadata.table(KEYSPACE, name);
    let (Some(log), Some(index)) = (table("node_slow_log"), table("node_slow_log_time_idx")) else { return };
    let timestamp = coordinator.timestamp();
    let session = request.session.as_bytes().to_vec();
    let node = address(request.node);
    let shard = i32::from(rt::shard::this().0).to_be_bytes().to_vec();
    let started_at = request.started_at.to_be_bytes().to_vec();

    let mut values = vec![
        ("command", request.command.into_bytes()),
        ("date", started_at.clone()),
        ("duration", i32::try_from(request.duration).unwrap_or(i32::MAX).to_be_bytes().to_vec()),
        ("session_id", session.clone()),
    ];
    values.extend(request.client.map(|client| ("source_ip", address(client))));
    values.extend(request.username.map(|name| ("username", name.into_bytes())));
    let tables = request.tables.into_iter().map(|name| (name.into_bytes(), Vec::new())).collect();
    let collections = vec![("parameters", entries(request.parameters)), ("table_names", tables)];
    let mut mutation = MutationBuilder::new(log.schema.id, log.schema.version, &session);
    let key = Clustering::from_components([&node[..], &shard[..]]);
    mutation.row(key, row(log, timestamp, &values, collections, Some(ttl)));
    let record = mutation.finish(&log.schema);

    let minute = request.started_at.div_euclid(MILLIS_PER_MINUTE) * MILLIS_PER_MINUTE;
    let key = Clustering::from_components([&started_at[..], &session[..]]);
    let values = [("node_ip", node), ("shard", shard), ("start_time", session)];
    let mut mutation = MutationBuilder::new(index.schema.id, index.schema.version, &minute.to_be_bytes());
    mutation.row(key, row(index, timestamp, &values, Vec::new(), Some(ttl)));
    let entry = mutation.finish(&index.schema);

    // The index entry is written last, so that the record that it names exists.
    write(coordinator, record).await;
    write(coordinator, entry).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slow_requests_are_admitted_and_not_too_many() {
        let log = SlowLog::default();
        assert!(log.admit(u32::MAX).is_none(), "it is off");
        log.set(SlowLogSettings { enabled: true, threshold_micros: 10, ..SlowLogSettings::default() });
        assert!(log.admit(9).is_none());
        let mut admitted: Vec<_> = (0..MAX_PENDING).map(|_| log.admit(10).expect("there is room")).collect();
        assert!(log.admit(11).is_none(), "no room");
        admitted.pop();
        assert!(log.admit(11).is_some());
        let traces: Vec<_> = (0..MAX_PENDING_TRACES).map(|_| log.admit_trace().expect("there is room")).collect();
        assert!(log.admit_trace().is_none(), "no room");
        drop(traces);
        assert!(log.admit_trace().is_some());
    }

    #[test]
    fn long_statements_are_shown_in_part() {
        assert_eq!(shown_text("SELECT"), "SELECT");
        // Not within a character.
        let long = shown_text(&"x\u{e4}".repeat(MAX_SHOWN_TEXT));
        assert!(long.len() <= MAX_SHOWN_TEXT + 3 && long.ends_with("x..."), "{}", long.len());
    }
}
