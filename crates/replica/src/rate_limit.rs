//! Applies the table option `per_partition_rate_limit` on a shard: counts the partitions of a
//! request and decides whether it is refused.
//!
//! The coordinator decides itself if its shard owns all partitions of a request
//! ([`Replica::limit`]). Otherwise every replica decides, with the coordinator's random number, so
//! that replicas with similar counts decide alike. Refused operations are counted as well.
//!
//! A limit of bytes is decided by the bytes of earlier operations. An operation is charged after it
//! was performed, where it was performed: reads by the bytes that were read, writes by their
//! mutations.
//!
//! A scan of more than one token is not limited. Neither are requests of other classes than `User`,
//! nor reads for reconciliation: their operation was counted when its page was read.

use crate::error::{LimitedBy, RateLimited, ReplicaError};
use crate::excess::Excess;
use crate::hot::PartitionId;
use crate::limited_partitions::Refusal;
use crate::limiter::{LimitKind, debt, decide, hash};
use crate::page::Page;
use crate::read::Replica;
use crate::request::{Class, Context, KeyedMutation, RateLimitMode, ReadCommand, ReplicaRequest};
use model::TableSchema;
use model::id::TableId;
use model::range::PartitionRange;
use model::token::Token;

/// The token of a range, if it has only one.
pub fn only_token(range: &PartitionRange) -> Option<Token> {
    let (start, end) = (&range.start, &range.end);
    let first = if start.key.is_none() && start.after { start.token.0.checked_add(1)? } else { start.token.0 };
    let last = if end.key.is_none() && !end.after { end.token.0.checked_sub(1)? } else { end.token.0 };
    (first == last).then_some(Token(first))
}

impl Replica {
    /// Counts an operation of a partition, and decides by the limits of its table and the draw.
    /// Without a draw it is only counted. In mode `observe` every operation is accepted.
    ///
    /// # Errors [`RateLimited`]
    pub fn limit(
        &self,
        token: Token,
        schema: &TableSchema,
        kind: LimitKind,
        draw: Option<u32>,
        context: &Context,
    ) -> Result<(), RateLimited> {
        let limits = schema.rate_limits();
        let (operations, kib) =
            if kind.is_write() { (limits.writes, limits.write_kib) } else { (limits.reads, limits.read_kib) };
        let table = schema.id;
        let count = operations.map(|_| self.rate_limiter.add(token, table, kind));
        let Some(draw) = draw else { return Ok(()) };
        let exceeded = match (operations, count) {
            (Some(limit), Some(count)) if !decide(count, limit, draw) => {
                Some((kind, Excess::of_count(count, limit, self.rate_limiter.window_elapsed_ms(), draw)))
            }
            _ => kib.and_then(|limit| self.exceeded_bytes(token, table, kind.bytes(), limit, draw)),
        };
        let Some((kind, excess)) = exceeded else { return Ok(()) };
        let observe = limits.observe;
        self.rate_limiter.partitions.refused(token, &Refusal { table: schema.full_name(), kind, observe, excess });
        if observe {
            let observed = &self.rate_limiter.observed[usize::from(kind.is_write())];
            observed.set(observed.get() + 1);
            context.trace("Rate limit: would be refused, but the mode is observe");
            return Ok(());
        }
        self.hot.refused(PartitionId { table, token }, kind);
        let partition = hash(token, kind);
        Err(RateLimited { kind, table, by: LimitedBy::Table, partition, excess })
    }

    /// The excess of a partition that has used up its budget of bytes.
    fn exceeded_bytes(
        &self,
        token: Token,
        table: TableId,
        kind: LimitKind,
        limit: u32,
        draw: u32,
    ) -> Option<(LimitKind, Excess)> {
        let (debt, budget) = (self.rate_limiter.debt(token, table, kind, limit), debt::budget(limit));
        let excess = || Excess::of_debt(debt, limit, budget, self.rate_limiter.window_elapsed_ms(), draw);
        (debt >= budget).then(|| (kind, excess()))
    }

    /// Charges a page to its partition, if the table has a limit of bytes.
    #[cold]
    pub(crate) fn charge_read(&self, schema: &TableSchema, command: &ReadCommand, page: &Page, context: &Context) {
        let Some(limit) = schema.rate_limits().read_kib.filter(|_| context.class == Class::User) else { return };
        let bytes = page.examined_bytes / command.ranges.len().max(1) as u64;
        for token in command.ranges.iter().filter_map(only_token) {
            self.rate_limiter.charge(token, command.table, LimitKind::ReadBytes, bytes, limit);
        }
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
                self.rate_limiter.charge(key.token, mutation.table(), LimitKind::WriteBytes, bytes, limit);
            }
        }
    }

    /// Counts the partitions of a request that has a mode, all of them before the decision.
    #[cold]
    pub(crate) fn check_rate_limit(&self, request: &ReplicaRequest, context: &Context) -> Result<(), ReplicaError> {
        let draw = match context.rate_limit {
            RateLimitMode::Off | RateLimitMode::Exempt | RateLimitMode::Counted | RateLimitMode::ChargeOnly => {
                return Ok(());
            }
            RateLimitMode::CountOnly => None,
            RateLimitMode::Enforce { draw } => Some(draw),
        };
        if context.class != Class::User {
            return Ok(());
        }
        let mut result = Ok(());
        let mut add = |token: Token, table: TableId, kind: LimitKind| {
            if let Some(schema) = self.engine.schema(table) {
                result = result.and(self.limit(token, &schema, kind, draw, context));
            }
        };
        match request {
            ReplicaRequest::Read(command)
            | ReplicaRequest::Digest(command)
            | ReplicaRequest::ReadAndDigest(command) => {
                let tokens = command.ranges.iter().filter_map(only_token);
                tokens.for_each(|token| add(token, command.table, LimitKind::Read));
            }
            ReplicaRequest::MutationRead(_) => {}
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
