//! Applies the table option `per_partition_rate_limit` on a shard: counts the partitions of a
//! request and decides whether it is refused.
//!
//! The coordinator decides itself if its shard owns all partitions of a request, or has been told
//! what comes to other coordinators ([`Replica::limit`]). Otherwise every replica decides, with the
//! coordinator's random number, so that replicas with similar counts decide alike. Refused
//! operations are counted as well.
//!
//! A scan of more than one token is not limited. Neither are requests of other classes than `User`,
//! nor reads for reconciliation: their operation was counted when its page was read.

use crate::arrivals::{Arrival, Origin};
use crate::decider::Decision;
use crate::error::{RateLimited, ReplicaError};
use crate::limiter::{LimitKey, LimitKind};
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

fn key_of(token: Token, table: TableId, kind: LimitKind) -> LimitKey {
    LimitKey { token: token.0, table: table.0.as_u128(), kind }
}

impl Replica {
    /// Counts an operation of a partition that arrives at this shard as its coordinator, and
    /// decides by the limit of its table and the draw. `owns`: whether this shard owns the
    /// partition.
    pub fn limit(&self, token: Token, table: TableId, kind: LimitKind, limit: u32, draw: u32, owns: bool) -> Decision {
        self.rate_limiter.arrive(key_of(token, table, kind), limit, draw, owns)
    }

    /// Sets the number of shards of the cluster that report what arrives at them. 0 or 1: none
    /// does.
    pub fn set_reporting_coordinators(&self, count: u64) {
        self.rate_limiter.set_coordinators(count);
    }

    /// What arrives at this shard as coordinator and is to be reported to the owners of the
    /// partitions.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.rate_limiter.to_report()
    }

    /// Takes the report of another coordinator, in place of its last one. Returns the rate of each
    /// partition at all other coordinators.
    pub fn take_arrivals(&self, from: Origin, report: Vec<Arrival>) -> Vec<u64> {
        self.rate_limiter.take(from, report)
    }

    /// Takes the rate of a partition at all other coordinators, as an owner has answered.
    pub fn learn_arrivals(&self, key: LimitKey, others: u64) {
        self.rate_limiter.learn(key, others);
    }

    /// Counts the partitions of a request that has a mode, all of them before the decision.
    #[cold]
    pub(crate) fn check_rate_limit(&self, request: &ReplicaRequest, context: &Context) -> Result<(), ReplicaError> {
        let (draw, is_counted) = match context.rate_limit {
            RateLimitMode::Off | RateLimitMode::Counted => return Ok(()),
            RateLimitMode::CountOnly => (None, false),
            RateLimitMode::Enforce { draw } => (Some(draw), false),
            RateLimitMode::Deferred { draw } => (Some(draw), true),
        };
        if context.class != Class::User {
            return Ok(());
        }
        let mut result = Ok(());
        let mut add = |token: Token, table: TableId, kind: LimitKind| {
            let limits = self.engine.schema(table).map(|schema| schema.rate_limits()).unwrap_or_default();
            let limit = if kind == LimitKind::Read { limits.reads } else { limits.writes };
            let Some(limit) = limit else { return };
            let key = key_of(token, table, kind);
            if !is_counted {
                self.rate_limiter.count_sent(key);
            }
            if draw.is_some_and(|draw| !self.rate_limiter.decide(key, limit, draw)) && result.is_ok() {
                result = Err(RateLimited { kind, table });
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
