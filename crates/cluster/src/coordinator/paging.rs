//! The paging state: where a query goes on. An opaque blob for the client, versioned and checksummed; whatever comes back is
//! checked before it is believed. Facts: paging.md sections 2 and 4.
//!
//! ```text
//! u8 version (1), u32 CRC32 of what follows (little-endian, as all numbers)
//! 16 bytes query id, 16 bytes table id
//! u64 remaining rows                (of LIMIT; all bits set: no limit)
//! u64 rows returned of the last partition
//! u8 region, i8 weight
//! u32 length, partition key; u32 length, clustering prefix
//! ```

use super::CoordinatorError;
use bytes::Bytes;
use model::id::{QueryId, TableId};
use model::key::{Clustering, MAX_KEY_BYTES};
use replica::{Position, region_from_code};

const VERSION: u8 = 1;

/// Where a query goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PagingState {
    /// The query, the same on all pages.
    pub query: QueryId,
    /// The table.
    pub table: TableId,
    /// Rows still to come of the statement's LIMIT.
    pub remaining: u64,
    /// The last thing consumed.
    pub position: Position,
    /// Rows returned of its partition.
    pub rows_in_last: u64,
}

impl PagingState {
    /// The blob.
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION, 0, 0, 0, 0];
        out.extend_from_slice(self.query.as_bytes());
        out.extend_from_slice(self.table.as_bytes());
        out.extend_from_slice(&self.remaining.to_le_bytes());
        out.extend_from_slice(&self.rows_in_last.to_le_bytes());
        out.push(self.position.region as u8);
        out.push(self.position.weight as u8);
        for bytes in [&self.position.key, &self.position.prefix.0] {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        let crc = crc32fast::hash(&out[5..]);
        out[1..5].copy_from_slice(&crc.to_le_bytes());
        out.into()
    }

    /// Reads a blob back. Whatever is not exactly one of ours is refused.
    pub fn decode(bytes: &Bytes) -> Result<PagingState, CoordinatorError> {
        Self::parse(bytes).ok_or(CoordinatorError::PagingState)
    }

    fn parse(bytes: &Bytes) -> Option<PagingState> {
        let (&version, rest) = bytes.split_first()?;
        let (crc, mut rest) = rest.split_first_chunk::<4>()?;
        if version != VERSION || crc32fast::hash(rest) != u32::from_le_bytes(*crc) {
            return None;
        }
        let query = QueryId::from_bytes(take(&mut rest)?);
        let table = TableId::from_bytes(take(&mut rest)?);
        let remaining = u64::from_le_bytes(take(&mut rest)?);
        let rows_in_last = u64::from_le_bytes(take(&mut rest)?);
        let [region, weight] = take(&mut rest)?;
        let weight = weight as i8;
        if !(-1..=1).contains(&weight) {
            return None;
        }
        let mut blob = || {
            let len = u32::from_le_bytes(take(&mut rest)?) as usize;
            let (head, tail) = rest.split_at_checked(len)?;
            rest = tail;
            Some(bytes.slice_ref(head))
        };
        let (key, prefix) = (blob()?, blob()?);
        if !rest.is_empty() || key.len() > MAX_KEY_BYTES {
            return None;
        }
        let position = Position { key, region: region_from_code(region)?, prefix: Clustering(prefix), weight };
        Some(PagingState { query, table, remaining, position, rows_in_last })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use replica::Region;

    fn state() -> PagingState {
        PagingState {
            query: QueryId::from_bytes([1; 16]),
            table: TableId::from_bytes([2; 16]),
            remaining: u64::MAX,
            position: Position {
                key: Bytes::from_static(b"key"),
                region: Region::Clustered,
                prefix: Clustering::from_components([&b"ck"[..]]),
                weight: -1,
            },
            rows_in_last: 1 << 40,
        }
    }

    #[test]
    fn comes_back() {
        assert_eq!(PagingState::decode(&state().encode()).unwrap(), state());
    }

    #[test]
    fn damage_is_refused() {
        let good = state().encode();
        for len in 0..good.len() {
            assert!(PagingState::decode(&good.slice(..len)).is_err());
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.to_vec();
                bad[at] ^= 1 << bit;
                assert!(PagingState::decode(&bad.into()).is_err(), "byte {at} bit {bit}");
            }
        }
    }
}
