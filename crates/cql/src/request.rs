//! The context in which one statement is executed, and the translation of the coordinator's errors
//! into errors for the client.

use crate::api::{ClientState, QueryParams};
use crate::dialect::Dialect;
use crate::error::{Error, WriteType};
use crate::guardrails::Guardrails;
use crate::rate_limit_error::RateLimitError;
use cluster::Metadata;
use coordinator::{Consistency, Coordinator, CoordinatorError, RequestOptions, WriteKind};
use model::TableSchema;
use replica::{Class, Context, RateLimitMode, Trace};
use rt::sync::{Deadline, Semaphore, SemaphorePermit, Unwanted};
use rt::time::{Duration, Instant};
use std::cell::RefCell;
use std::rc::Rc;

/// Timeouts of requests, and other limits of the query processor.
#[derive(Clone, Debug)]
pub struct Config {
    /// `read_request_timeout_in_ms`.
    pub read_timeout: Duration,
    /// `range_request_timeout_in_ms`.
    pub range_timeout: Duration,
    /// `write_request_timeout_in_ms`.
    pub write_timeout: Duration,
    /// `counter_write_request_timeout_in_ms`.
    pub counter_write_timeout: Duration,
    /// `truncate_request_timeout_in_ms`.
    pub truncate_timeout: Duration,
    /// The memory limit for texts and plans of prepared statements on each shard, in bytes.
    pub prepared_statements_cache_size: usize,
    /// `batch_size_warn_threshold_in_kb`, in bytes.
    pub batch_size_warn: usize,
    /// `batch_size_fail_threshold_in_kb`, in bytes.
    pub batch_size_fail: usize,
    /// `max_memory_for_unlimited_query_hard_limit`, in bytes. It limits results that are collected
    /// before they are sent.
    pub unpaged_bytes: usize,
    /// The largest mutation, in bytes: half of `commitlog_segment_size_in_mb`.
    pub mutation_bytes: usize,
    /// `restrict_future_timestamp`: refuse timestamps more than three days in the future.
    pub restrict_future_timestamp: bool,
    /// The dialect for statements that are planned from now on.
    pub dialect: Dialect,
    /// Thresholds for warnings and refusals.
    pub guardrails: Guardrails,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            read_timeout: Duration::from_secs(5),
            range_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(2),
            counter_write_timeout: Duration::from_secs(5),
            truncate_timeout: Duration::from_secs(60),
            prepared_statements_cache_size: 32 << 20,
            batch_size_warn: 128 << 10,
            batch_size_fail: 1024 << 10,
            unpaged_bytes: 100 << 20,
            mutation_bytes: 16 << 20,
            restrict_future_timestamp: true,
            dialect: Dialect::default(),
            guardrails: Guardrails::default(),
        }
    }
}

impl Config {
    /// The longest timeout of a request that reads or writes rows.
    pub fn longest_timeout(&self) -> Duration {
        self.read_timeout.max(self.range_timeout).max(self.write_timeout).max(self.counter_write_timeout)
    }

    /// The bytes of bound values that a statement may refer to if it refers to values several
    /// times: four times the largest mutation. A value may be in a mutation once.
    pub fn referenced_bytes(&self) -> usize {
        self.mutation_bytes.saturating_mul(4)
    }
}

/// The execution context of one statement.
pub struct Request<'a> {
    /// The shard's coordinator.
    pub coordinator: &'a Coordinator,
    /// The metadata that the statement is planned and routed by, until the request releases it.
    pub held: RefCell<Option<Rc<Metadata>>>,
    /// The limits.
    pub config: &'a Config,
    /// The client that sent it.
    pub client: &'a ClientState,
    /// The parameters of the request.
    pub params: &'a QueryParams,
    /// Records the steps of a traced request.
    pub trace: Option<Rc<Trace>>,
    /// Serializes requests that take much more memory than their frames. See [`Request::turn`].
    pub expansion: &'a Semaphore,
}

impl<'a> Request<'a> {
    /// Waits for the turn of a request that takes much more memory than its frame, which alone is
    /// charged to the memory for requests. Such requests of a shard run one after the other: the
    /// next one waits until the permit is dropped.
    pub async fn turn(&self, deadline: &Deadline) -> Result<SemaphorePermit<'a>, Error> {
        let overloaded =
            || Error::Overloaded("Too many statements that need much memory are in progress on this shard".into());
        match deadline.limit_unless(&self.client.cancel, self.expansion.acquire()).await {
            Ok(permit) => permit.map_err(|_| overloaded()),
            Err(Unwanted::Late) => Err(overloaded()),
            Err(Unwanted::Cancelled) => Err(Error::Server(CoordinatorError::Cancelled.to_string())),
        }
    }

    /// Waits for [`Request::turn`] if the request takes much memory.
    pub async fn turn_if(&self, is_large: bool, deadline: &Deadline) -> Result<Option<SemaphorePermit<'a>>, Error> {
        match is_large {
            true => Box::pin(self.turn(deadline)).await.map(Some),
            false => Ok(None),
        }
    }

    /// Like [`Request::turn`], for work before the timeout of the statement is known.
    pub async fn turn_of_large(&self) -> Result<SemaphorePermit<'a>, Error> {
        self.turn(&self.deadline(self.config.longest_timeout())?).await
    }

    /// The metadata that the statement is planned and routed by. After
    /// [`Request::release_metadata`], this returns the newest metadata.
    pub fn metadata(&self) -> Rc<Metadata> {
        self.held.borrow().clone().unwrap_or_else(|| self.coordinator.metadata())
    }

    /// Releases the metadata. A request of more than a page must not pin old metadata, because
    /// schema and topology changes may wait for it.
    pub fn release_metadata(&self) {
        self.held.take();
    }

    /// The end of a timeout that began when the request was received.
    ///
    /// # Errors
    ///
    /// [`Error::Overloaded`] if the request had to wait for so long that its timeout has passed. It
    /// must not begin: its client does not wait for it any more.
    #[inline]
    pub fn deadline(&self, timeout: Duration) -> Result<Deadline, Error> {
        let Some(received) = self.params.received else { return Ok(Deadline::after(timeout)) };
        let deadline = Deadline(received + timeout);
        if deadline.is_past() {
            not_begun(received, timeout)?;
        }
        Ok(deadline)
    }

    /// The class of the request's work.
    pub fn class(&self) -> Class {
        if self.client.address.is_some() { Class::User } else { Class::System }
    }

    /// Options for the coordinator, with this timeout.
    ///
    /// # Errors
    ///
    /// The same as of [`Request::deadline`].
    pub fn options(&self, timeout: Duration) -> Result<RequestOptions, Error> {
        let deadline = self.deadline(timeout)?;
        Ok(RequestOptions {
            context: Context {
                class: self.class(),
                deadline,
                cancel: self.client.cancel.clone(),
                trace: self.trace.clone(),
                metadata_number: self.metadata().number,
                large_data: None,
                rate_limit: RateLimitMode::Off,
            },
            consistency: self.params.consistency,
        })
    }
}

/// The error for a request whose timeout passed before it began. A timeout of zero is not such a
/// case: it ends every request when it has to wait.
#[cold]
fn not_begun(received: Instant, timeout: Duration) -> Result<(), Error> {
    if timeout.is_zero() {
        return Ok(());
    }
    let waited = rt::time::coarse_now().saturating_duration_since(received);
    Err(Error::Overloaded(format!(
        "The request was not started: it waited for {} ms, and its timeout is {} ms",
        waited.as_millis(),
        timeout.as_millis()
    )))
}

impl Request<'_> {
    /// The time in seconds that decides about expiry: the client's if it sent one, else the clock's
    /// time `micros`.
    pub fn seconds(&self, micros: i64) -> i64 {
        self.params.now_in_seconds.map_or_else(|| micros.div_euclid(1_000_000), i64::from)
    }

    /// Refuses levels that have no meaning for a read.
    pub fn check_read_level(&self) -> Result<(), Error> {
        match self.params.consistency {
            Consistency::Any => Err(Error::invalid("ANY ConsistencyLevel is only supported for writes")),
            _ => Ok(()),
        }
    }

    /// Refuses levels that have no meaning for a counter update.
    pub fn check_counter_level(&self, table: &str) -> Result<(), Error> {
        match self.params.consistency {
            Consistency::Any => Err(Error::invalid(format!(
                "Consistency level ANY is not yet supported for counter columnfamily {table}"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses levels that have no meaning for an unconditional write.
    pub fn check_write_level(&self) -> Result<(), Error> {
        match self.params.consistency {
            Consistency::Serial | Consistency::LocalSerial => {
                Err(Error::invalid("You must use conditional updates for serializable writes"))
            }
            _ => Ok(()),
        }
    }
}

/// Translates the failure of a read into an error for the client.
pub fn read_error(error: CoordinatorError, schema: &TableSchema) -> Error {
    let target = || format!("{}.{}", schema.keyspace, schema.name);
    match error {
        CoordinatorError::Timeout { consistency, required, received, data_present } => Error::ReadTimeout {
            target: target(),
            consistency,
            received: received as i32,
            required: required as i32,
            data_present,
        },
        CoordinatorError::Failed { consistency, required, received, failures, nodes, data_present, why } => {
            Error::ReadFailure {
                target: target(),
                consistency,
                received: received as i32,
                required: required as i32,
                failures: failures as i32,
                nodes,
                data_present,
                why,
            }
        }
        other => either_error(other, schema),
    }
}

/// The kind of a write, as the protocol names it.
pub fn write_type(kind: WriteKind) -> WriteType {
    match kind {
        WriteKind::Simple => WriteType::Simple,
        WriteKind::LoggedBatch => WriteType::Batch,
        WriteKind::UnloggedBatch => WriteType::UnloggedBatch,
        WriteKind::Counter => WriteType::Counter,
    }
}

/// Translates the failure of a write into an error for the client.
pub fn write_error(error: CoordinatorError, schema: &TableSchema, kind: WriteKind) -> Error {
    let kind = write_type(kind);
    let target = || format!("{}.{}", schema.keyspace, schema.name);
    match error {
        CoordinatorError::Timeout { consistency, required, received, .. } => Error::WriteTimeout {
            target: target(),
            consistency,
            received: received as i32,
            required: required as i32,
            kind,
        },
        CoordinatorError::Failed { consistency, required, received, failures, nodes, why, .. } => Error::WriteFailure {
            target: target(),
            consistency,
            received: received as i32,
            required: required as i32,
            failures: failures as i32,
            nodes,
            kind,
            why,
        },
        other => either_error(other, schema),
    }
}

fn either_error(error: CoordinatorError, schema: &TableSchema) -> Error {
    match error {
        CoordinatorError::Unavailable { consistency, required, alive } => {
            Error::Unavailable { consistency, required: required as i32, alive: alive as i32 }
        }
        CoordinatorError::Overloaded(overload) => Error::ReplicaOverloaded(overload),
        error @ CoordinatorError::ResultMemoryExceeded { .. } => Error::Overloaded(error.to_string()),
        CoordinatorError::RateLimited { refused, by_coordinator } => Error::RateLimit(RateLimitError {
            target: schema.full_name().clone(),
            refused,
            rejected_by_coordinator: by_coordinator,
        }),
        CoordinatorError::Invalid(why) => Error::Invalid(why),
        CoordinatorError::PagingState => Error::Protocol(error.to_string()),
        CoordinatorError::NoSuchTable => Error::Invalid(format!("unconfigured table {}", schema.name)),
        CoordinatorError::Timeout { .. } | CoordinatorError::Failed { .. } | CoordinatorError::Cancelled => {
            Error::Server(error.to_string())
        }
    }
}
