//! A page of the fragments of a tablet: what a source answers when a tablet is streamed as
//! mutations. Pure.
//!
//! `u8 flags, 16 bytes schema version, u64 partitions, u64 bytes`, then the fragments in the wire
//! form of replicas. Numbers are little-endian.

use bytes::{Buf, Bytes};
use engine::streaming::TabletSize;
use model::fragment::Fragment;
use model::id::SchemaVersion;
use replica::wire::{decode_fragments, encode_fragments};
use rt::Pieces;
use smallvec::SmallVec;
use uuid::Uuid;

const LAST: u8 = 1;
const HEADER: usize = 1 + 16 + 8 + 8;

/// A page of fragments.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MutationPage {
    /// Whether no page follows.
    pub is_last: bool,
    /// The version of the schema with which the fragments were read.
    pub schema: SchemaVersion,
    /// The size of the whole tablet, about.
    pub estimate: TabletSize,
    /// The fragments.
    pub fragments: Vec<Fragment>,
}

impl MutationPage {
    pub fn encode(&self) -> Pieces {
        assert!(self.is_last || !self.fragments.is_empty(), "a receiver would ask for empty pages without end");
        let mut header = Vec::with_capacity(HEADER);
        header.push(if self.is_last { LAST } else { 0 });
        header.extend_from_slice(self.schema.0.as_bytes());
        header.extend_from_slice(&self.estimate.partitions.to_le_bytes());
        header.extend_from_slice(&self.estimate.bytes.to_le_bytes());
        let fragments = encode_fragments(&self.fragments);
        let pieces: SmallVec<_> = std::iter::once(Bytes::from(header)).chain(fragments.iter().cloned()).collect();
        Pieces::from(pieces)
    }

    pub fn decode(mut bytes: Bytes) -> Result<MutationPage, String> {
        if bytes.len() < HEADER {
            return Err(format!("{} bytes that are not a page of mutations", bytes.len()));
        }
        let flags = bytes.get_u8();
        if flags > LAST {
            return Err(format!("a page of mutations with the flags {flags}"));
        }
        let schema = SchemaVersion(Uuid::from_u128(bytes.get_u128()));
        let estimate = TabletSize { partitions: bytes.get_u64_le(), bytes: bytes.get_u64_le() };
        let fragments = decode_fragments(&bytes).map_err(|_| "malformed mutations".to_owned())?;
        Ok(MutationPage { is_last: flags == LAST, schema, estimate, fragments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::key::DecoratedKey;
    use model::time::Tombstone;

    fn page() -> MutationPage {
        let key = DecoratedKey::new(Bytes::from_static(b"key"));
        let start = Fragment::PartitionStart { key, tombstone: Tombstone::new(-3, 7) };
        let schema = SchemaVersion(Uuid::from_u128(0x0102));
        let estimate = TabletSize { partitions: 300, bytes: 2 };
        MutationPage { is_last: true, schema, estimate, fragments: vec![start, Fragment::PartitionEnd] }
    }

    #[test]
    fn its_bytes_stay() {
        let mut expected = vec![1];
        expected.extend([&[0; 14][..], &[1, 2]].concat());
        expected.extend([0x2c, 1, 0, 0, 0, 0, 0, 0]);
        expected.extend([2, 0, 0, 0, 0, 0, 0, 0]);
        // The version and the length of the fragments, then the fragments.
        expected.extend([1, 25, 0, 0, 0, 2, 0, 0, 0]);
        expected.extend([0, 3, 0, 0, 0, b'k', b'e', b'y', 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0]);
        expected.push(4);
        let bytes = page().encode().join();
        assert_eq!(bytes, expected);
        assert_eq!(MutationPage::decode(bytes), Ok(page()));
    }

    #[test]
    fn garbage_is_refused() {
        let bytes = page().encode().join();
        for len in 0..bytes.len() {
            assert!(MutationPage::decode(bytes.slice(..len)).is_err(), "{len} bytes");
        }
        let other = [&[2], &bytes[1..]].concat();
        assert!(MutationPage::decode(other.into()).is_err(), "unknown flags");
    }
}
