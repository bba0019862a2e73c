//! How a SELECT shares its shard while it filters rows and evaluates expressions.
//!
//! A row can have megabytes, and a statement thousands of conditions and expressions. Work is
//! counted in bytes that are read. After some work the statement yields if the time of its poll is
//! used up. It fails if its deadline is past or its client is gone.

use crate::error::Error;
use crate::request::read_error;
use coordinator::{CoordinatorError, RequestOptions};
use model::TableSchema;
use std::cell::Cell;

/// Work between looks at the clock, bytes.
const WORK_PER_LOOK: usize = 64 << 10;

/// Work of a row beside that of its bytes.
pub const ROW_WORK: usize = 1 << 10;

/// A row of more work than this is filtered and evaluated step by step, with pauses.
pub const LARGE_ROW_WORK: usize = 256 << 10;

/// Work of a function that computes with numbers of many digits, beside that of its bytes.
pub const MATH_WORK: usize = 16 << 10;

/// The work of one statement since its last look at the clock.
pub struct Pace<'a> {
    options: &'a RequestOptions,
    schema: &'a TableSchema,
    work: Cell<usize>,
}

impl<'a> Pace<'a> {
    /// For a statement that reads a table.
    pub fn new(options: &'a RequestOptions, schema: &'a TableSchema) -> Self {
        Pace { options, schema, work: Cell::new(0) }
    }

    /// Counts work. True if [`Pace::pause`] is due.
    #[inline]
    pub fn spend(&self, work: usize) -> bool {
        let total = self.work.get().saturating_add(work);
        let due = total >= WORK_PER_LOOK;
        self.work.set(if due { 0 } else { total });
        due
    }

    /// Yields if the task's time is up. An error if the statement is not to go on afterwards.
    pub async fn pause(&self) -> Result<(), Error> {
        if !rt::task::is_time_to_yield() {
            return Ok(());
        }
        rt::task::yield_now().await;
        let context = &self.options.context;
        if context.cancel.is_cancelled() {
            return Err(read_error(CoordinatorError::Cancelled, self.schema));
        }
        if context.deadline.is_past() {
            return Err(Error::ReadTimeout {
                target: format!("{}.{}", self.schema.keyspace, self.schema.name),
                consistency: self.options.consistency,
                received: 0,
                required: 1,
                data_present: true,
            });
        }
        Ok(())
    }

    /// Counts work, and pauses if that is due.
    pub async fn worked(&self, work: usize) -> Result<(), Error> {
        if self.spend(work) { self.pause().await } else { Ok(()) }
    }
}
