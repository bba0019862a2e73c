//! Applies the table option `per_partition_rate_limit` on a shard: counts the partitions of a
//! request and decides whether it is refused.
//!
//! The coordinator decides itself if its shard owns all partitions of a request, or if owners have
//! reported the rates at other coordinators ([`Replica::limit`]). Otherwise every replica decides,
//! with the coordinator's random number, so that replicas with similar counts decide alike. Refused
//! operations are counted as well.
//!
//! A limit of bytes is decided by the bytes of earlier operations. An operation is charged after it
//! was performed, by the owners that performed it: reads by the bytes that were read, writes by
//! their mutations. The owner that has read a page reports its bytes to the others
//! ([`crate::spent`]). Replicas that read only digests are not charged, and do not decide by bytes.
//!
//! A scan of more than one token is not limited. Neither are requests of other classes than `User`,
//! nor reads for reconciliation: their operation was counted when its page was read.

use crate::arrivals::{Arrival, Origin};
use crate::decider::Decision;
use crate::error::{LimitedBy, RateLimited, ReplicaError};
use crate::excess::Excess;
use crate::hot::PartitionId;
use crate::limited_partitions::Refusal;
use crate::limiter::{LimitKey, LimitKind, debt, hash};
use crate::rate_limiter::ReadCharge;
use crate::replica::Replica;
use crate::request::{Class, Context, KeyedMutation, RateLimitMode, ReadCommand, ReplicaRequest};
use crate::trace::Trace;
use model::TableSchema;
use model::id::TableId;
use model::range::PartitionRange;
use model::token::Token;
use uuid::Uuid;

/// The token of a range, if it has only one.
pub fn only_token(range: &PartitionRange) -> Option<Token> {
    let (start, end) = (&range.start, &range.end);
    let first = if start.key.is_none() && start.after { start.token.0.checked_add(1)? } else { start.token.0 };
    let last = if end.key.is_none() && !end.after { end.token.0.checked_sub(1)? } else { end.token.0 };
    (first == last).then_some(Token(first))
}

fn key_of(token: Token, table: TableId, kind: LimitKind) -> LimitKey {
    LimitKey { token: token.0, table: table.0.as_u128(), kind }
}

/// The coordinator's decision on an operation that it does not refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It is accepted.
    Accepted,
    /// The replicas must decide.
    Deferred,
}

/// An operation of a partition.
struct Operation<'a> {
    token: Token,
    schema: &'a TableSchema,
    kind: LimitKind,
}

impl Operation<'_> {
    /// The limits of its table: operations per second, KiB per second.
    fn limits(&self) -> (Option<u32>, Option<u32>) {
        let limits = self.schema.rate_limits();
        match self.kind.is_write() {
            true => (limits.writes, limits.write_kib),
            false => (limits.reads, limits.read_kib),
        }
    }

    fn key(&self) -> LimitKey {
        key_of(self.token, self.schema.id, self.kind)
    }
}

/// The amount by which a partition exceeds a limit.
#[derive(Clone, Copy)]
enum Exceeded {
    /// The partition's count of operations.
    Count(u64),
    /// The partition's debt in units.
    Debt(u64),
}

/// The charge of a write, when it is dropped: a write whose deadline passes while it waits for the
/// disk is stored all the same. One that still waits for memory then is charged, too, and is not
/// stored.
pub(crate) struct WriteCharge<'a> {
    replica: &'a Replica,
    mutations: &'a [KeyedMutation],
    context: &'a Context,
}

impl<'a> WriteCharge<'a> {
    /// The charge of a write that is about to be stored.
    pub fn new(replica: &'a Replica, mutations: &'a [KeyedMutation], context: &'a Context) -> WriteCharge<'a> {
        WriteCharge { replica, mutations, context }
    }

    /// The write was not stored.
    pub fn cancel(&mut self) {
        self.mutations = &[];
    }
}

impl Drop for WriteCharge<'_> {
    fn drop(&mut self) {
        self.replica.charge_write(self.mutations, self.context);
    }
}

impl Replica {
    /// Counts an operation of a partition that arrives at this shard as its coordinator, and
    /// decides by the limits of its table and the draw. `owns`: whether this shard owns the
    /// partition. In mode `observe` every operation is accepted.
    ///
    /// # Errors
    ///
    /// [`RateLimited`]
    #[inline]
    pub fn limit(
        &self,
        token: Token,
        schema: &TableSchema,
        kind: LimitKind,
        draw: u32,
        owns: bool,
        trace: Option<&Trace>,
    ) -> Result<Admission, RateLimited> {
        let operation = Operation { token, schema, kind };
        let (operations, kib) = operation.limits();
        let decision = operations.map(|limit| self.rate_limiter.arrive(operation.key(), limit, draw, owns));
        if let Some(Decision::Refused { count }) = decision {
            return self.exceeded(&operation, draw, Exceeded::Count(count), trace).map(|()| Admission::Accepted);
        }
        let Some(limit) = kib.filter(|_| owns) else {
            let is_unknown = decision == Some(Decision::Unknown) || kib.is_some();
            return Ok(if is_unknown { Admission::Deferred } else { Admission::Accepted });
        };
        self.check_debt(&operation, limit, draw, trace).map(|()| Admission::Accepted)
    }

    /// Decides, as a replica, on an operation that has been counted. `pays`: the operation will be
    /// charged to this replica.
    fn decide(
        &self,
        operation: &Operation<'_>,
        draw: u32,
        pays: bool,
        trace: Option<&Trace>,
    ) -> Result<(), RateLimited> {
        let (operations, kib) = operation.limits();
        let decision = operations.map(|limit| self.rate_limiter.decide(operation.key(), limit, draw));
        if let Some(Decision::Refused { count }) = decision {
            return self.exceeded(operation, draw, Exceeded::Count(count), trace);
        }
        kib.filter(|_| pays).map_or(Ok(()), |limit| self.check_debt(operation, limit, draw, trace))
    }

    /// Decides on a write that its coordinator on this shard has counted, and of which no replica
    /// is up to decide, by what is known here. Charges it.
    ///
    /// # Errors
    ///
    /// [`RateLimited`]
    #[cold]
    pub fn limit_hinted(&self, mutations: &[KeyedMutation], draw: u32, context: &Context) -> Result<(), RateLimited> {
        for (mutation, key) in mutations {
            if let Some(schema) = self.engine.schema(mutation.table()) {
                let operation = Operation { token: key.token, schema: &schema, kind: LimitKind::Write };
                self.decide(&operation, draw, true, context.trace.as_deref())?;
            }
        }
        self.charge_write(mutations, context);
        Ok(())
    }

    /// An error if the partition has used up its budget of bytes.
    fn check_debt(
        &self,
        operation: &Operation<'_>,
        limit: u32,
        draw: u32,
        trace: Option<&Trace>,
    ) -> Result<(), RateLimited> {
        let key = key_of(operation.token, operation.schema.id, operation.kind.bytes());
        let debt = self.rate_limiter.debt(key, limit);
        match debt >= debt::budget(limit) {
            true => self.exceeded(operation, draw, Exceeded::Debt(debt), trace),
            false => Ok(()),
        }
    }

    /// Notes that an operation exceeds a limit. An error, unless the mode is `observe`.
    #[inline(never)]
    fn exceeded(
        &self,
        operation: &Operation<'_>,
        draw: u32,
        exceeded: Exceeded,
        trace: Option<&Trace>,
    ) -> Result<(), RateLimited> {
        let Operation { token, schema, kind } = *operation;
        let ((operations, kib), now) = (operation.limits(), self.rate_limiter.moment());
        let elapsed_ms = now.into_window;
        let (kind, excess) = match exceeded {
            Exceeded::Count(count) => (kind, Excess::of_count(count, operations.unwrap_or_default(), elapsed_ms, draw)),
            Exceeded::Debt(units) => {
                let limit = kib.unwrap_or_default();
                (kind.bytes(), Excess::of_debt(units, limit, debt::budget(limit), draw))
            }
        };
        let (table, observe) = (schema.id, schema.rate_limits().observe);
        let refusal = Refusal { id: table, table: schema.full_name(), kind, observe, excess };
        self.rate_limiter.partitions.refused(token, &refusal, now);
        let id = PartitionId { table, token };
        if observe {
            self.hot.would_refuse(id);
            let observed = &self.rate_limiter.observed[usize::from(kind.is_write())];
            observed.set(observed.get() + 1);
            if let Some(trace) = trace {
                trace.event("Rate limit: would be refused, but the mode is observe");
            }
            return Ok(());
        }
        self.hot.refused(id, kind, true);
        let partition = hash(token, kind);
        Err(RateLimited { kind, table, by: LimitedBy::Table, partition, excess })
    }

    /// The limit of a table in KiB per second.
    fn read_kib(&self, table: TableId) -> Option<u32> {
        self.engine.schema(table)?.rate_limits().read_kib
    }

    /// The charge of a read. None: the read is not charged, or its table has no limit of bytes.
    #[inline]
    pub(crate) fn read_charge(&self, command: &ReadCommand, context: &Context) -> Option<Box<ReadCharge<'_>>> {
        match context.rate_limit.is_limited() && context.class == Class::User {
            true => self.new_read_charge(command),
            false => None,
        }
    }

    #[cold]
    fn new_read_charge(&self, command: &ReadCommand) -> Option<Box<ReadCharge<'_>>> {
        let limit = self.read_kib(command.table)?;
        let tokens = command.ranges.iter().filter_map(only_token);
        let keys = tokens.map(|token| key_of(token, command.table, LimitKind::ReadBytes)).collect();
        Some(Box::new(ReadCharge::new(&self.rate_limiter, keys, command.ranges.len(), limit)))
    }

    /// Charges mutations to their partitions, if their tables have a limit of bytes.
    #[cold]
    pub(crate) fn charge_write(&self, mutations: &[KeyedMutation], context: &Context) {
        if context.class != Class::User {
            return;
        }
        for (mutation, key) in mutations {
            let limits = self.engine.schema(mutation.table()).map(|schema| schema.rate_limits());
            if let Some(limit) = limits.and_then(|limits| limits.write_kib) {
                let bytes = mutation.as_bytes().len() as u64;
                self.rate_limiter.charge(key_of(key.token, mutation.table(), LimitKind::WriteBytes), bytes, limit);
            }
        }
    }

    /// See [`crate::arrivals::Arrivals::set_coordinators`].
    pub fn set_reporting_coordinators(&self, count: u64) {
        self.rate_limiter.set_coordinators(count);
    }

    /// The operations that arrive at this shard as coordinator and are to be reported to the
    /// owners of the partitions.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.rate_limiter.to_report()
    }

    /// Takes the report of another coordinator, in place of its last one. Returns the rate of each
    /// partition at all other coordinators.
    pub fn take_arrivals(&self, from: Origin, report: Vec<Arrival>) -> Vec<u64> {
        let is_limited = |arrival: &Arrival| {
            let schema = self.engine.schema(TableId(Uuid::from_u128(arrival.key.table)));
            schema.is_some_and(|schema| schema.rate_limits().limits_reads() | schema.rate_limits().limits_writes())
        };
        match report.iter().any(is_limited) {
            true => self.rate_limiter.take(from, report, |key| self.read_kib(TableId(Uuid::from_u128(key.table)))),
            // The limits were removed. Nothing is allocated for such a report.
            false => vec![0; report.len()],
        }
    }

    /// Takes the rate of a partition at all other coordinators, as an owner has answered.
    pub fn learn_arrivals(&self, key: LimitKey, others: u64) {
        self.rate_limiter.learn(key, others);
    }

    /// Counts the partitions of a request that has a mode, all of them before the decision.
    #[cold]
    pub(crate) fn check_rate_limit(&self, request: &ReplicaRequest, context: &Context) -> Result<(), ReplicaError> {
        let (draw, is_counted) = match context.rate_limit {
            RateLimitMode::Off | RateLimitMode::Exempt | RateLimitMode::Counted | RateLimitMode::ChargeOnly => {
                return Ok(());
            }
            RateLimitMode::CountOnly => (None, false),
            RateLimitMode::Enforce { draw } => (Some(draw), false),
            RateLimitMode::Deferred { draw } => (Some(draw), true),
        };
        if context.class != Class::User {
            return Ok(());
        }
        // Between two reports the debts of the replicas differ. If those that read only digests
        // decided too, many reads would be refused after the one that reads the rows has paid.
        let pays = !matches!(request, ReplicaRequest::Digest(_));
        let mut result = Ok(());
        let mut add = |token: Token, table: TableId, kind: LimitKind| {
            if let Some(schema) = self.engine.schema(table) {
                let operation = Operation { token, schema: &schema, kind };
                if !is_counted && operation.limits().0.is_some() {
                    self.rate_limiter.count_sent(operation.key());
                }
                if let Some(draw) = draw {
                    result = result.and(self.decide(&operation, draw, pays, context.trace.as_deref()));
                }
            }
        };
        match request {
            ReplicaRequest::Read(command)
            | ReplicaRequest::Digest(command)
            | ReplicaRequest::ReadAndDigest(command) => {
                let tokens = command.ranges.iter().filter_map(only_token);
                tokens.for_each(|token| add(token, command.table, LimitKind::Read));
            }
            ReplicaRequest::ReadFragments(_) => {}
            ReplicaRequest::Write(_) | ReplicaRequest::CounterUpdate(_) => {
                for (mutation, key) in request.mutations() {
                    add(key.token, mutation.table(), LimitKind::Write);
                }
            }
        }
        result.map_err(|refused| {
            let refusals = &self.rate_limiter.refused[usize::from(refused.kind.is_write())];
            refusals.set(refusals.get() + 1);
            context.trace("Rate limit: refused by the replica");
            ReplicaError::RateLimited(refused)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::key::{DecoratedKey, RingCut};

    #[test]
    fn a_range_of_one_token_has_a_token() {
        let range = |start, end| PartitionRange { start, end };
        let (before, after) = (|token| RingCut::before_token(Token(token)), |token| RingCut::after_token(Token(token)));
        let key = DecoratedKey::new(bytes::Bytes::from_static(b"key"));
        assert_eq!(only_token(&PartitionRange::singular(&key)), Some(key.token));
        for (start, end) in [(before(7), after(7)), (after(6), after(7)), (after(6), before(8)), (before(7), before(8))]
        {
            assert_eq!(only_token(&range(start, end)), Some(Token(7)));
        }
        assert_eq!(only_token(&range(before(7), after(8))), None);
        assert_eq!(only_token(&range(after(5), after(7))), None);
        assert_eq!(only_token(&range(RingCut::before_key(&key), after(key.token.0))), Some(key.token));
        assert_eq!(only_token(&PartitionRange::FULL), None);
        assert_eq!(only_token(&range(before(i64::MAX), after(i64::MAX))), Some(Token(i64::MAX)));
        assert_eq!(only_token(&range(after(i64::MAX), after(i64::MAX))), None);
    }
}
