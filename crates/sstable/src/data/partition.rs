//! The start of a partition: key and deletion.

use crate::input::{Input, Parsed, write_deletion};
use model::key::DecoratedKey;
use model::time::Tombstone;

/// The part of a partition that precedes the static row. `len` is the number of bytes read.
pub(crate) struct Start<'a> {
    pub key: &'a [u8],
    pub tombstone: Tombstone,
    pub len: usize,
}

pub(crate) fn read(bytes: &[u8]) -> Parsed<Start<'_>> {
    let mut input = Input(bytes);
    let key = input.bytes16()?;
    let tombstone = input.deletion()?;
    Ok(Start { key, tombstone, len: bytes.len() - input.0.len() })
}

pub(crate) fn write(key: &DecoratedKey, tombstone: Tombstone, out: &mut Vec<u8>) {
    out.extend_from_slice(&(key.key.len() as u16).to_be_bytes());
    out.extend_from_slice(&key.key);
    write_deletion(tombstone, out);
}
