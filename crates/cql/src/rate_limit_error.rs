//! The error of a request that a rate limit refused: its text, and the same facts as JSON.
//!
//! Neither is made before it is written to the client's frame: a refusal must cost less than
//! serving.

use model::TableSchema;
use replica::{LimitedBy, RateLimited};
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

/// A refusal by a rate limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RateLimitError {
    /// Keyspace and table, separated by a dot.
    pub target: Arc<str>,
    /// The refusal.
    pub refused: RateLimited,
    /// Whether the coordinator refused the request, so that it reached no replica.
    pub rejected_by_coordinator: bool,
}

impl RateLimitError {
    /// A refusal by the coordinator.
    pub(crate) fn by_coordinator(schema: &TableSchema, refused: RateLimited) -> RateLimitError {
        RateLimitError { target: schema.full_name().clone(), refused, rejected_by_coordinator: true }
    }

    /// Whether the request is a write, else a read.
    pub fn is_write(&self) -> bool {
        self.refused.kind.is_write()
    }

    fn operation(&self) -> &'static str {
        if self.is_write() { "write" } else { "read" }
    }

    fn rejected_by(&self) -> &'static str {
        if self.rejected_by_coordinator { "coordinator" } else { "replicas" }
    }

    /// Passes the pieces of the text, in order. Putting them into a frame takes a fifth of the
    /// instructions of formatting.
    pub fn with_pieces<T>(&self, then: impl FnOnce(&[&str]) -> T) -> T {
        let (mut observed, mut limit, mut wait) = (itoa::Buffer::new(), itoa::Buffer::new(), itoa::Buffer::new());
        let RateLimitError { target, refused: RateLimited { excess, by, .. }, .. } = self;
        let (is_write, is_own) = (self.is_write(), self.rejected_by_coordinator);
        let wait = wait.format(excess.retry_after_ms);
        if *by == LimitedBy::Protection {
            let begin = match is_write {
                false => {
                    "Hot partition protection: the partition exceeds its share of an overloaded shard for read in table "
                }
                true => {
                    "Hot partition protection: the partition exceeds its share of an overloaded shard for write in table "
                }
            };
            let rejected = match is_own {
                true => ", rejected by coordinator (retry after ",
                false => ", rejected by replicas (retry after ",
            };
            return then(&[begin, target, rejected, wait, " ms)"]);
        }
        let begin = match is_write {
            false => "Per-partition rate limit reached for read in table ",
            true => "Per-partition rate limit reached for write in table ",
        };
        let is_bytes = self.refused.kind.is_bytes();
        let rejected = match (is_own, is_bytes) {
            (true, false) => ", rejected by coordinator (about ",
            (false, false) => ", rejected by replicas (about ",
            (true, true) => ", rejected by coordinator (",
            (false, true) => ", rejected by replicas (",
        };
        let [unit, per_second] = match (is_bytes, is_write) {
            (false, false) => [" reads per second, limit ", "; retry after "],
            (false, true) => [" writes per second, limit ", "; retry after "],
            (true, _) => [" KiB not covered yet, limit ", " KiB per second; retry after "],
        };
        let (observed, limit) = (observed.format(excess.observed), limit.format(excess.limit));
        then(&[begin, target, rejected, observed, unit, limit, per_second, wait, " ms)"])
    }

    /// The refusal as JSON: the value of the custom payload `messina-rate-limit`.
    pub fn json(&self) -> impl Display {
        Json(self)
    }
}

/// ScyllaDB's text, then the numbers.
impl Display for RateLimitError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.with_pieces(|pieces| pieces.iter().try_for_each(|piece| f.write_str(piece)))
    }
}

struct Json<'a>(&'a RateLimitError);

impl Display for Json<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let RateLimitError { target, refused, .. } = self.0;
        let unit = if refused.kind.is_bytes() { "KiB" } else { "operations" };
        write!(f, "{{\"kind\":\"{}\",\"table\":\"", self.0.operation())?;
        for c in target.chars() {
            if matches!(c, '"' | '\\') {
                write!(f, "\\")?;
            }
            write!(f, "{c}")?;
        }
        let excess = &refused.excess;
        write!(f, "\",\"rejected_by\":\"{}\",\"unit\":\"{unit}\"", self.0.rejected_by())?;
        write!(f, ",\"limit_per_second\":{},\"observed\":{}", excess.limit, excess.observed)?;
        write!(f, ",\"retry_after_ms\":{}}}", excess.retry_after_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::TableId;
    use replica::{Excess, LimitKind, LimitedBy};

    fn error(kind: LimitKind, rejected_by_coordinator: bool) -> RateLimitError {
        let excess = Excess { limit: 100, observed: 250, retry_after_ms: 1340 };
        let refused =
            RateLimited { kind, table: TableId::from_bytes([1; 16]), by: LimitedBy::Table, partition: 1, excess };
        RateLimitError { target: "ks.t".into(), refused, rejected_by_coordinator }
    }

    #[test]
    fn texts_begin_like_scylladbs() {
        for (kind, by_coordinator, expected) in [
            (
                LimitKind::Read,
                true,
                "Per-partition rate limit reached for read in table ks.t, rejected by coordinator \
                 (about 250 reads per second, limit 100; retry after 1340 ms)",
            ),
            (
                LimitKind::WriteBytes,
                false,
                "Per-partition rate limit reached for write in table ks.t, rejected by replicas \
                 (250 KiB not covered yet, limit 100 KiB per second; retry after 1340 ms)",
            ),
        ] {
            assert_eq!(error(kind, by_coordinator).to_string(), expected);
        }
        let mut protected = error(LimitKind::Read, false);
        protected.refused.by = LimitedBy::Protection;
        assert_eq!(
            protected.to_string(),
            "Hot partition protection: the partition exceeds its share of an overloaded shard for read in table ks.t, \
             rejected by replicas (retry after 1340 ms)"
        );
    }

    #[test]
    fn the_json_is_well_formed() {
        let mut quoted = error(LimitKind::ReadBytes, false);
        quoted.target = "ks.\"t\\".into();
        let json: serde_json::Value = serde_json::from_str(&quoted.json().to_string()).expect("well-formed");
        let expected = serde_json::json!({
            "kind": "read", "table": "ks.\"t\\", "rejected_by": "replicas", "unit": "KiB",
            "limit_per_second": 100, "observed": 250, "retry_after_ms": 1340,
        });
        assert_eq!(json, expected);
    }
}
