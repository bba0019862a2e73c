//! Stores traces in `system_traces.sessions` and `events`, where cqlsh and drivers read them.
//!
//! A trace is written after its request is answered, as internal work of the node. If that fails,
//! it is logged, and no client gets an error.
//!
//! A trace that a client requested is written on every node, because the client may read it from
//! any. Traces of slow requests can be many, and are written on this node only.

use cluster::metadata::Table;
use coordinator::{Consistency, Coordinator, RequestOptions, WriteKind};
use model::key::{Clustering, DecoratedKey};
use model::mutation::{Mutation, MutationBuilder};
use model::row::{Cell, Marker, Row, build};
use model::time::{Seconds, Tombstone, expiry};
use replica::{Class, Context, RateLimitMode, Trace};
use rt::sync::{Cancel, Deadline};
use rt::time::Duration;
use smallvec::smallvec;
use std::net::IpAddr;
use std::rc::Rc;

/// The keyspace of the trace tables.
pub(crate) const KEYSPACE: &str = "system_traces";

/// The timeout for writing a part of a trace.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long after its answer a request may still record events. Replicas may answer after the level
/// is reached.
const LATE_EVENTS: Duration = Duration::from_secs(10);

/// The time between two checks for late events.
const LATE_EVENTS_PERIOD: Duration = Duration::from_millis(100);

/// The serialized entries of a map; or of a set, with empty values.
pub(crate) type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// The session of a trace.
#[derive(Clone, Debug)]
pub struct Session {
    /// The address of the client.
    pub client: Option<IpAddr>,
    /// The address of this node.
    pub coordinator: IpAddr,
    /// QUERY, EXECUTE, BATCH or PREPARE.
    pub command: &'static str,
    /// A description, such as "Execute CQL3 query".
    pub request: String,
    /// The statement, consistency level and page size.
    pub parameters: Vec<(String, String)>,
    /// In milliseconds since the epoch.
    pub started_at: i64,
}

/// Writes the trace of an answered request. `ttl` is in seconds. Without it, a client requested the
/// trace, and the default TTL of its tables applies. Events that replicas report later are added
/// while a task of the request still waits for them, for at most `LATE_EVENTS`.
pub async fn save(coordinator: &Coordinator, trace: Rc<Trace>, session: Session, ttl: Option<i32>) {
    let (coordinator_address, started_at) = (session.coordinator, session.started_at);
    save_answered(coordinator, &trace, session, ttl).await;
    let end = rt::time::now() + LATE_EVENTS;
    loop {
        // A task that still works on the request shares the trace.
        let is_over = Rc::strong_count(&trace) == 1 || rt::time::now() >= end;
        if let Some(mutation) = events_of(coordinator, &trace, coordinator_address, started_at, ttl) {
            store(coordinator, mutation, ttl).await;
        }
        if is_over {
            return;
        }
        rt::time::sleep(LATE_EVENTS_PERIOD).await;
    }
}

/// The events recorded since the last call, as rows of `system_traces.events`. `None` if there are
/// none. The id of an event contains its time, by which cqlsh and drivers show and order events.
fn events_of(
    coordinator: &Coordinator,
    trace: &Trace,
    source: IpAddr,
    started_at: i64,
    ttl: Option<i32>,
) -> Option<Mutation> {
    let steps = trace.take_events();
    if steps.is_empty() {
        return None;
    }
    let metadata = coordinator.metadata();
    let events = metadata.table(KEYSPACE, "events")?;
    let mut mutation = MutationBuilder::new(events.schema.id, events.schema.version, trace.id.as_bytes());
    let timestamp = coordinator.timestamp();
    let mut last = 0;
    for event in steps {
        // Events of the same microsecond keep their order.
        last = (started_at as u64 * 10_000 + u64::from(event.elapsed_micros) * 10).max(last + 1);
        let id = rt::random::time_uuid_at(last);
        let values = [
            ("activity", event.activity.into_bytes()),
            ("source", address(event.node.unwrap_or(source))),
            ("source_elapsed", (event.elapsed_micros as i32).to_be_bytes().to_vec()),
            ("thread", format!("shard {}", event.shard).into_bytes()),
        ];
        let row = row(events, timestamp, &values, Vec::new(), ttl);
        mutation.row(Clustering::from_components([&id.as_bytes()[..]]), row);
    }
    Some(mutation.finish(&events.schema))
}

/// Writes a part of a trace on this node, and on all other nodes if a client requested the trace.
async fn store(coordinator: &Coordinator, mutation: Mutation, ttl: Option<i32>) {
    write(coordinator, mutation.clone()).await;
    if ttl.is_none() {
        coordinator.write_to_other_nodes(mutation, &context(coordinator)).await;
    }
}

async fn save_answered(coordinator: &Coordinator, trace: &Trace, session: Session, ttl: Option<i32>) {
    let duration = trace.elapsed_micros() as i32;
    let metadata = coordinator.metadata();
    let Some(sessions) = metadata.table(KEYSPACE, "sessions") else { return };
    let source = address(session.coordinator);
    let events_mutation = events_of(coordinator, trace, session.coordinator, session.started_at, ttl);
    let timestamp = coordinator.timestamp();

    let parameters = entries(session.parameters);
    let mut values = vec![
        ("command", session.command.as_bytes().to_vec()),
        ("coordinator", source),
        ("duration", duration.to_be_bytes().to_vec()),
        ("request", session.request.into_bytes()),
        ("started_at", session.started_at.to_be_bytes().to_vec()),
    ];
    if let Some(client) = session.client {
        values.push(("client", address(client)));
    }
    let mut mutation = MutationBuilder::new(sessions.schema.id, sessions.schema.version, trace.id.as_bytes());
    mutation.row(Clustering::EMPTY, row(sessions, timestamp, &values, vec![("parameters", parameters)], ttl));
    let session_mutation = mutation.finish(&sessions.schema);

    // The session is written last. Clients wait for its duration before they read the events,
    // perhaps from another node.
    for mutation in events_mutation.into_iter().chain([session_mutation]) {
        store(coordinator, mutation, ttl).await;
    }
}

/// Texts as the entries of a map.
pub(crate) fn entries(texts: Vec<(String, String)>) -> Entries {
    texts.into_iter().map(|(key, value)| (key.into_bytes(), value.into_bytes())).collect()
}

fn context(coordinator: &Coordinator) -> Context {
    Context {
        class: Class::System,
        deadline: Deadline::after(TIMEOUT),
        cancel: Cancel::new(),
        trace: None,
        metadata_number: coordinator.metadata().number,
        large_data: None,
        rate_limit: RateLimitMode::Off,
    }
}

/// Writes a mutation as internal work of the node.
pub(crate) async fn write(coordinator: &Coordinator, mutation: Mutation) {
    let key: DecoratedKey = mutation.decorated_key();
    let options = RequestOptions { context: context(coordinator), consistency: Consistency::One };
    if let Err(error) = coordinator.write(smallvec![(mutation, key)], WriteKind::Simple, &options).await {
        tracing::warn!(%error, "a trace could not be written");
    }
}

/// A row of values and of collections of texts, with this TTL or the table's default TTL.
pub(crate) fn row(
    table: &Table,
    timestamp: i64,
    values: &[(&str, Vec<u8>)],
    mut collections: Vec<(&str, Entries)>,
    ttl: Option<i32>,
) -> Row {
    let ttl = ttl.unwrap_or(table.schema.options.default_time_to_live);
    let (expires, _) = expiry(rt::time::wall_seconds(), ttl);
    let mut cells = Vec::new();
    for (name, value) in values {
        if let Some(column) = table.schema.column_named(name) {
            cells.push(lasting(Cell::live(column.id, timestamp, value), ttl, expires));
        }
    }
    for (name, entries) in &mut collections {
        entries.sort();
        if let Some(column) = table.schema.column_named(name)
            && column.ty.is_multi_cell()
        {
            let cell = |(key, value)| lasting(Cell::live(column.id, timestamp, value).at(key), ttl, expires);
            cells.extend(entries.iter().map(|(key, value)| (&key[..], &value[..])).map(cell));
        }
    }
    let marker = if ttl > 0 { Marker::expiring(timestamp, ttl, expires) } else { Marker::new(timestamp) };
    build(&table.schema, Some(marker), Tombstone::LIVE, cells)
}

fn lasting(cell: Cell<'_>, ttl: i32, expires: Seconds) -> Cell<'_> {
    if ttl > 0 { cell.with_ttl(ttl, expires) } else { cell }
}

/// An address as a value of type `inet`.
pub(crate) fn address(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
