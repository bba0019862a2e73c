//! Applies the table option `per_partition_rate_limit` on a shard: counts the partitions of a
//! request and decides whether it is refused.
//!
//! The coordinator decides itself if its shard owns all partitions of a request
//! ([`Replica::limit`]). Otherwise every replica decides, with the coordinator's random number, so
//! that replicas with similar counts decide alike. Refused operations are counted as well.
//!
//! A scan of more than one token is not limited. Neither are requests of other classes than `User`,
//! nor reads for reconciliation: their operation was counted when its page was read.

use crate::error::{LimitedBy, RateLimited, ReplicaError};
use crate::hot::PartitionId;
use crate::limiter::{LimitKind, decide};
use crate::read::Replica;
use crate::request::{Class, Context, RateLimitMode, ReplicaRequest};
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
    /// Counts an operation of a partition, and decides by the limit of its table and the draw.
    ///
    /// # Errors [`RateLimited`]
    pub fn limit(
        &self,
        token: Token,
        table: TableId,
        kind: LimitKind,
        limit: u32,
        draw: u32,
    ) -> Result<(), RateLimited> {
        let count = self.rate_limiter.add(token, table, kind);
        if decide(count, limit, draw) {
            return Ok(());
        }
        self.hot.refused(PartitionId { table, token }, kind);
        Err(RateLimited { kind, table, by: LimitedBy::Table })
    }

    /// Counts the partitions of a request that has a mode, all of them before the decision.
    #[cold]
    pub(crate) fn check_rate_limit(&self, request: &ReplicaRequest, context: &Context) -> Result<(), ReplicaError> {
        let draw = match context.rate_limit {
            RateLimitMode::Off | RateLimitMode::Exempt | RateLimitMode::Counted => return Ok(()),
            // Such a draw is always accepted.
            RateLimitMode::CountOnly => None,
            RateLimitMode::Enforce { draw } => Some(draw),
        };
        if context.class != Class::User {
            return Ok(());
        }
        let mut result = Ok(());
        let mut add = |token: Token, table: TableId, kind: LimitKind| {
            let limits = self.engine.schema(table).map(|schema| schema.rate_limits()).unwrap_or_default();
            let limit = if kind == LimitKind::Read { limits.reads } else { limits.writes };
            let Some(limit) = limit else { return };
            let counted = self.limit(token, table, kind, limit, draw.unwrap_or(0));
            if draw.is_some() && result.is_ok() {
                result = counted;
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
            let refusals = &self.rate_limiter.refused[refused.kind as usize];
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
