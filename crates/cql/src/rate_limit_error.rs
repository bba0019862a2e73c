//! The error of a request that a rate limit refused: its text, and the same facts as JSON.
//!
//! Neither is made before it is written to the client's frame: a refusal must cost less than
//! serving.

mod text;

use bytes::BytesMut;
use model::TableSchema;
use replica::{LimitedBy, RateLimited};
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use text::{Line, Literal};

const PROTECTED: Literal = Literal::new("Hot partition protection: the partition exceeds its share of an ");
const READ: Literal = Literal::new("overloaded shard for read in table ");
const WRITE: Literal = Literal::new("overloaded shard for write in table ");
const LIMITED_READ: Literal = Literal::new("Per-partition rate limit reached for read in table ");
const LIMITED_WRITE: Literal = Literal::new("Per-partition rate limit reached for write in table ");
const BY_COORDINATOR: Literal = Literal::new(", rejected by coordinator (");
const BY_REPLICAS: Literal = Literal::new(", rejected by replicas (");
const BY_COORDINATOR_ABOUT: Literal = Literal::new(", rejected by coordinator (about ");
const BY_REPLICAS_ABOUT: Literal = Literal::new(", rejected by replicas (about ");
const READS: Literal = Literal::new(" reads per second, limit ");
const WRITES: Literal = Literal::new(" writes per second, limit ");
const KIB: Literal = Literal::new(" KiB not covered yet, limit ");
const PER_SECOND: Literal = Literal::new("; ");
const KIB_PER_SECOND: Literal = Literal::new(" KiB per second; ");
const RETRY_AFTER: Literal = Literal::new("retry after ");
const MILLISECONDS: Literal = Literal::new(" ms)");

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

    /// Appends the text to the client's frame. This takes a small part of the instructions of
    /// formatting.
    pub fn append_text(&self, out: &mut BytesMut) {
        let RateLimitError { target, refused: RateLimited { excess, by, .. }, .. } = self;
        let mut line = Line::new();
        match by {
            LimitedBy::Protection => {
                let shard = if self.is_write() { &WRITE } else { &READ };
                out.extend_from_slice(PROTECTED.as_bytes());
                out.extend_from_slice(shard.as_bytes());
                line.literal(if self.rejected_by_coordinator { &BY_COORDINATOR } else { &BY_REPLICAS });
            }
            _ => {
                let limited = if self.is_write() { &LIMITED_WRITE } else { &LIMITED_READ };
                out.extend_from_slice(limited.as_bytes());
                self.numbers(&mut line);
            }
        }
        line.literal(&RETRY_AFTER);
        line.number(excess.retry_after_ms);
        line.literal(&MILLISECONDS);
        out.extend_from_slice(target.as_bytes());
        out.extend_from_slice(line.as_bytes());
    }

    /// By which limit, and by how much it is exceeded.
    #[inline]
    fn numbers(&self, line: &mut Line) {
        let is_bytes = self.refused.kind.is_bytes();
        line.literal(match (self.rejected_by_coordinator, is_bytes) {
            (true, false) => &BY_COORDINATOR_ABOUT,
            (false, false) => &BY_REPLICAS_ABOUT,
            (true, true) => &BY_COORDINATOR,
            (false, true) => &BY_REPLICAS,
        });
        let [unit, per_second] = match (is_bytes, self.is_write()) {
            (false, false) => [&READS, &PER_SECOND],
            (false, true) => [&WRITES, &PER_SECOND],
            (true, _) => [&KIB, &KIB_PER_SECOND],
        };
        line.number(self.refused.excess.observed);
        line.literal(unit);
        line.number(self.refused.excess.limit);
        line.literal(per_second);
    }

    /// The refusal as JSON: the value of the custom payload `messina-rate-limit`.
    pub fn json(&self) -> impl Display {
        Json(self)
    }
}

/// ScyllaDB's text, then the numbers.
impl Display for RateLimitError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut text = BytesMut::new();
        self.append_text(&mut text);
        f.write_str(str::from_utf8(&text).unwrap_or_default())
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
        write!(f, "\",\"rejected_by\":\"{}\"", self.0.rejected_by())?;
        match refused.by {
            LimitedBy::Protection => write!(f, ",\"reason\":\"hot_partition_protection\"")?,
            _ => {
                let (limit, observed) = (excess.limit, excess.observed);
                write!(f, ",\"unit\":\"{unit}\",\"limit_per_second\":{limit},\"observed\":{observed}")?;
            }
        }
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
    fn error_messages_start_like_those_of_scylladb() {
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
