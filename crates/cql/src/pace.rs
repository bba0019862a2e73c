//! How a statement shares its shard while it evaluates values, filters rows and sorts them.
//!
//! A value can have megabytes, and a statement thousands of conditions and expressions. Work is
//! counted in bytes that are read. After some work the statement yields if the time of its poll is
//! used up. It fails if its deadline is past or its client has disconnected.

use crate::error::{Error, WriteType};
use coordinator::{CoordinatorError, RequestOptions};
use model::TableSchema;
use rt::sync::{Cancel, Deadline};
use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Work between looks at the clock, bytes.
const WORK_PER_LOOK: usize = 64 << 10;

/// Work of a row in addition to the work of its bytes.
pub const ROW_WORK: usize = 1 << 10;

/// A row of more work than this is filtered and evaluated step by step, with pauses.
pub const LARGE_ROW_WORK: usize = 256 << 10;

/// Work of a function that computes with numbers of many digits, in addition to the work of its
/// bytes.
pub const MATH_WORK: usize = 16 << 10;

/// The work of one statement since its last look at the clock.
pub struct Pace<'a> {
    options: &'a RequestOptions,
    schema: &'a TableSchema,
    /// The kind of the write, unless the statement only reads.
    write: Option<WriteType>,
    work: Cell<usize>,
}

impl<'a> Pace<'a> {
    /// For a statement that reads a table.
    pub fn new(options: &'a RequestOptions, schema: &'a TableSchema) -> Self {
        Pace { options, schema, write: None, work: Cell::new(0) }
    }

    /// For a statement that writes to a table, before it has written anything.
    pub fn of_write(options: &'a RequestOptions, schema: &'a TableSchema, kind: WriteType) -> Self {
        Pace { write: Some(kind), ..Pace::new(options, schema) }
    }

    /// Counts work. True if [`Pace::pause`] is due.
    #[inline]
    pub fn spend(&self, work: usize) -> bool {
        let total = self.work.get().saturating_add(work);
        let due = total >= WORK_PER_LOOK;
        self.work.set(if due { 0 } else { total });
        due
    }

    /// Yields if the task's time is up. An error if the statement must not continue afterwards.
    pub async fn pause(&self) -> Result<(), Error> {
        if !rt::task::is_time_to_yield() {
            return Ok(());
        }
        rt::task::yield_now().await;
        let context = &self.options.context;
        if context.cancel.is_cancelled() {
            return Err(Error::Server(CoordinatorError::Cancelled.to_string()));
        }
        if context.deadline.is_past() {
            return Err(self.late());
        }
        Ok(())
    }

    #[cold]
    fn late(&self) -> Error {
        let target = format!("{}.{}", self.schema.keyspace, self.schema.name);
        let consistency = self.options.consistency;
        match self.write {
            None => Error::ReadTimeout { target, consistency, received: 0, required: 1, data_present: true },
            Some(kind) => Error::WriteTimeout { target, consistency, received: 0, required: 1, kind },
        }
    }

    /// Counts work, and pauses if that is due.
    pub async fn worked(&self, work: usize) -> Result<(), Error> {
        if self.spend(work) { self.pause().await } else { Ok(()) }
    }
}

/// The work to type a term or to resolve a name, in addition to the work of its bytes.
pub const PLAN_WORK: usize = 256;

/// How planning shares its shard. A short statement is planned at once, a long one with pauses.
pub struct PlanPace<'a> {
    /// The client and the end of the time, if planning pauses.
    pauses: Option<(&'a Cancel, Deadline)>,
    work: Cell<usize>,
}

impl<'a> PlanPace<'a> {
    /// Without pauses: the future of a plan is ready at its first poll.
    pub fn without_pauses() -> PlanPace<'static> {
        PlanPace { pauses: None, work: Cell::new(0) }
    }

    /// With pauses.
    pub fn paced(cancel: &'a Cancel, deadline: Deadline) -> Self {
        PlanPace { pauses: Some((cancel, deadline)), work: Cell::new(0) }
    }

    /// Whether planning pauses.
    pub fn pauses(&self) -> bool {
        self.pauses.is_some()
    }

    /// Counts work where no pause is possible. The next [`PlanPace::worked`] pauses for it.
    pub fn spend(&self, work: usize) {
        self.work.set(self.work.get().saturating_add(work));
    }

    /// Counts work, and pauses if that is due.
    #[inline]
    pub async fn worked(&self, work: usize) -> Result<(), Error> {
        let Some((cancel, deadline)) = &self.pauses else { return Ok(()) };
        let total = self.work.get().saturating_add(work);
        self.work.set(if total >= WORK_PER_LOOK { 0 } else { total });
        if total < WORK_PER_LOOK || !rt::task::is_time_to_yield() {
            return Ok(());
        }
        rt::task::yield_now().await;
        if cancel.is_cancelled() {
            return Err(Error::Server(CoordinatorError::Cancelled.to_string()));
        }
        if deadline.is_past() {
            return Err(Error::Overloaded(
                "The statement was not executed: its timeout passed while it was planned".into(),
            ));
        }
        Ok(())
    }

    /// Drops a syntax tree. The syntax tree of a long statement has many parts, and is dropped off
    /// the shard.
    pub fn discard<T: Send + 'static>(&self, tree: T) {
        match self.pauses() {
            true => rt::offload::discard(tree),
            false => drop(tree),
        }
    }
}

/// The output of a future of planning without pauses.
pub fn at_once<T>(planning: impl Future<Output = T>) -> T {
    match pin!(planning).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(planned) => planned,
        Poll::Pending => unreachable!("it has no pauses"),
    }
}
