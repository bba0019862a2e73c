//! Runs one statement: passes it to the query processor, and answers the client.

use super::client::Connection;
use super::memory::Charge;
use super::service::Service;
use super::transport::Transport;
use crate::protocol::{Reply, body::Text};
use cql::api::{Batch, QueryParams};
use rt::time::Instant;
use std::pin::pin;
use std::rc::Rc;
use uuid::Uuid;

/// A statement for a worker.
#[allow(clippy::large_enum_variant)]
pub(super) enum Statement {
    Query { text: Text, params: QueryParams },
    Prepare { text: Text, trace: Option<Uuid> },
    Execute { id: [u8; 16], params: QueryParams },
    Batch(Batch),
}

/// Whether a statement writes rows, so that its answer is small.
pub(super) enum Writes {
    Yes,
    No,
    /// If the prepared statement with this id does.
    IfPrepared([u8; 16]),
}

impl Statement {
    /// Whether the statement writes rows. Looks up nothing: most statements end before it matters.
    #[inline]
    pub fn writes(&self) -> Writes {
        match self {
            Statement::Execute { id, .. } => Writes::IfPrepared(*id),
            Statement::Query { text, .. } if is_write(text.as_str()) => Writes::Yes,
            Statement::Batch(_) => Writes::Yes,
            Statement::Query { .. } | Statement::Prepare { .. } => Writes::No,
        }
    }
}

fn is_write(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    ["INSERT", "UPDATE", "DELETE", "BEGIN"].iter().any(|verb| verb.eq_ignore_ascii_case(first))
}

/// A statement, with the connection and the frame to answer.
pub(super) struct Job {
    pub connection: Rc<Connection>,
    pub reply: Reply,
    /// When its frame was received.
    pub came: Instant,
    pub statement: Statement,
    /// The keyspace that the request names.
    pub keyspace: Option<Box<str>>,
}

/// A pending statement, counted against the limits.
pub(super) struct Waiting {
    transport: Rc<Transport>,
    connection: Rc<Connection>,
    /// The expected bytes of its answer.
    expected: usize,
    _charge: Charge,
    _large: Option<Charge>,
}

impl Waiting {
    /// `expected`: the expected bytes of its answer. `bytes`: its own.
    pub fn new(
        transport: &Rc<Transport>,
        connection: &Rc<Connection>,
        expected: usize,
        bytes: usize,
        large: Option<Charge>,
    ) -> Waiting {
        transport.in_flight.set(transport.in_flight.get() + 1);
        connection.in_flight.set(connection.in_flight.get() + 1);
        connection.expects(expected);
        Waiting {
            transport: transport.clone(),
            connection: connection.clone(),
            expected,
            _charge: transport.memory.charge(bytes),
            _large: large,
        }
    }
}

impl Waiting {
    fn assert_expected(&self) {
        for (in_flight, is_late, expected) in [
            (&self.transport.in_flight, !self.transport.late_refusals.is_empty(), &self.transport.expected),
            (&self.connection.in_flight, self.connection.late_refusals.get() > 0, &self.connection.expected),
        ] {
            assert!(
                in_flight.get() > 0 || is_late || expected.get() == 0,
                "without requests and late refusals, no answer is expected"
            );
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        debug_assert!(
            self.transport.in_flight.get() >= self.connection.in_flight.get() && self.connection.in_flight.get() > 0,
            "the pending statements of each connection are counted"
        );
        self.transport.statement_ended();
        self.connection.in_flight.set(self.connection.in_flight.get() - 1);
        self.connection.no_longer_expects(self.expected);
        if cfg!(debug_assertions) {
            self.assert_expected();
        }
        self.connection.wake();
    }
}

/// Runs a job and sends its answer.
pub(super) async fn run<S: Service>(service: &S, job: Job) {
    let Job { connection, reply, came, statement, keyspace } = job;
    let inside = keyspace.map(|keyspace| connection.client_in(&keyspace));
    let client = inside.as_ref().unwrap_or(&connection.client);
    match &statement {
        Statement::Execute { id, params } => {
            // Pinned, so that this large future is not moved.
            let answer = pin!(service.execute(client, id, params)).await;
            connection.answer(&reply, came, answer);
        }
        Statement::Query { text, params } => {
            let answer = pin!(service.query(client, text.as_str(), params)).await;
            connection.answer(&reply, came, answer);
        }
        Statement::Batch(batch) => {
            let answer = service.batch(client, batch).await;
            connection.answer(&reply, came, answer);
        }
        Statement::Prepare { text, trace } => {
            let prepared = service.prepare(client, text.as_str(), *trace).await;
            connection.prepared(&reply, prepared);
        }
    }
}
