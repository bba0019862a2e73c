//! The wire form of errors: `u8 code`, then the fields of that error. A code is never reused for
//! another error.

use super::codec::{Reader, Writer};
use crate::error::{LimitedBy, Overload, RateLimited, ReplicaError, Stale};
use crate::excess::Excess;
use crate::limiter::LimitKind;
use crate::request::Class;
use model::id::TableId;

pub(super) fn write(error: &ReplicaError, out: &mut Writer) {
    match error {
        ReplicaError::Timeout => out.u8(1),
        ReplicaError::Cancelled => out.u8(2),
        ReplicaError::Overloaded(Overload::Reads { class, waiting }) => {
            out.u8(3);
            out.u8(*class as u8);
            out.u32(*waiting);
        }
        ReplicaError::NoSuchTable => out.u8(4),
        ReplicaError::Corrupt(why) => write_text(5, why, out),
        ReplicaError::TooLarge(why) => write_text(6, why, out),
        ReplicaError::Rejected(why) => write_text(7, why, out),
        ReplicaError::Storage(why) => write_text(8, why, out),
        ReplicaError::Stale(Stale::Fenced { caller, fence }) => {
            out.u8(9);
            out.u64(*caller);
            out.u64(*fence);
        }
        ReplicaError::Stale(Stale::Moved) => out.u8(10),
        ReplicaError::Overloaded(Overload::Counters) => out.u8(11),
        ReplicaError::Overloaded(Overload::Writes) => out.u8(12),
        ReplicaError::RateLimited(RateLimited { kind, table, by, partition, excess }) => {
            out.u8(match by {
                LimitedBy::Table => 13,
                LimitedBy::Protection => 20,
            });
            out.u8(*kind as u8);
            out.raw(table.as_bytes());
            if (*partition, *excess) != Default::default() {
                out.u32(*partition);
                out.u32(excess.limit);
                out.u32(excess.observed);
                out.u32(excess.retry_after_ms);
            }
        }
    }
}

fn write_text(code: u8, why: &str, out: &mut Writer) {
    out.u8(code);
    out.bytes(why.as_bytes());
}

/// Decodes an error. An unknown code, of a later release, becomes a storage failure.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<ReplicaError> {
    Some(match reader.u8()? {
        1 => ReplicaError::Timeout,
        2 => ReplicaError::Cancelled,
        3 => {
            let class = Class::from_code(reader.u8()?)?;
            ReplicaError::Overloaded(Overload::Reads { class, waiting: reader.u32()? })
        }
        4 => ReplicaError::NoSuchTable,
        5 => ReplicaError::Corrupt(reader.text()?),
        6 => ReplicaError::TooLarge(reader.text()?),
        7 => ReplicaError::Rejected(reader.text()?),
        8 => ReplicaError::Storage(reader.text()?),
        9 => ReplicaError::stale(reader.u64()?, reader.u64()?),
        10 => ReplicaError::Stale(Stale::Moved),
        11 => ReplicaError::Overloaded(Overload::Counters),
        12 => ReplicaError::Overloaded(Overload::Writes),
        code @ (13 | 20) => {
            let (kind, table) = (LimitKind::from_code(reader.u8()?)?, TableId::from_bytes(reader.array()?));
            let (partition, excess) = match reader.u32() {
                Some(partition) => {
                    let (limit, observed) = (reader.u32()?, reader.u32()?);
                    (partition, Excess { limit, observed, retry_after_ms: reader.u32()? })
                }
                None => Default::default(),
            };
            let by = if code == 13 { LimitedBy::Table } else { LimitedBy::Protection };
            ReplicaError::RateLimited(RateLimited { kind, table, by, partition, excess })
        }
        code => {
            ReplicaError::Storage(format!("the replica failed with the error {code}, which is unknown to this release"))
        }
    })
}
