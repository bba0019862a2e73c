//! Range tombstone markers: a range tombstone begins, ends, or another one follows it.

use super::layout::Layout;
use super::{flags, prefix};
use crate::input::{Fault, Input, Parsed};
use model::key::ClusteringCut;
use model::time::Tombstone;
use model::types::vint::{unsigned_len, write_unsigned};

pub(crate) const EXCL_END: u8 = 0;
pub(crate) const INCL_START: u8 = 1;
pub(crate) const EXCL_END_INCL_START: u8 = 2;
/// Only in the promoted index: a row.
pub(crate) const CLUSTERING: u8 = 4;
pub(crate) const INCL_END_EXCL_START: u8 = 5;
pub(crate) const INCL_END: u8 = 6;
pub(crate) const EXCL_START: u8 = 7;

/// The position of a kind relative to its prefix: before (-1), at (0) or after (1).
pub(crate) fn weight(kind: u8) -> Parsed<i8> {
    match kind {
        EXCL_END | INCL_START | EXCL_END_INCL_START => Ok(-1),
        CLUSTERING => Ok(0),
        INCL_END_EXCL_START | INCL_END | EXCL_START => Ok(1),
        _ => Err(Fault::Bad("the kind of a marker is not known")),
    }
}

/// The kind of a marker that changes the deletion `from` to `to` at a cut.
pub(crate) fn kind(after: bool, from: Tombstone, to: Tombstone) -> u8 {
    match (after, from.is_live(), to.is_live()) {
        (false, true, _) => INCL_START,
        (true, true, _) => EXCL_START,
        (false, false, true) => EXCL_END,
        (true, false, true) => INCL_END,
        (false, false, false) => EXCL_END_INCL_START,
        (true, false, false) => INCL_END_EXCL_START,
    }
}

/// The deletion from a marker on, read from its body.
pub(crate) fn read_body(body: &[u8], kind: u8, layout: &Layout) -> Parsed<Tombstone> {
    let mut input = Input(body);
    input.uvint()?;
    let first = layout.read_deletion(&mut input)?;
    match kind {
        INCL_START | EXCL_START => Ok(first),
        EXCL_END | INCL_END => Ok(Tombstone::LIVE),
        EXCL_END_INCL_START | INCL_END_EXCL_START => layout.read_deletion(&mut input),
        _ => Err(Fault::Bad("the kind of a marker is not known")),
    }
}

/// Writes the marker at a cut. Returns its kind. The error is the index of a value of the wrong
/// length.
pub(crate) fn write(
    at: &ClusteringCut,
    from: Tombstone,
    to: Tombstone,
    layout: &Layout,
    previous: u64,
    out: &mut Vec<u8>,
) -> Result<u8, usize> {
    let kind = kind(at.after, from, to);
    out.push(flags::IS_MARKER);
    out.push(kind);
    out.extend_from_slice(&(at.prefix.len() as u16).to_be_bytes());
    prefix::write(&at.prefix.0, &layout.clustering, false, out)?;
    let mut body = Vec::with_capacity(32);
    if !from.is_live() {
        layout.write_deletion(from, &mut body);
    }
    if !to.is_live() {
        layout.write_deletion(to, &mut body);
    }
    write_unsigned((unsigned_len(previous) + body.len()) as u64, out);
    write_unsigned(previous, out);
    out.extend_from_slice(&body);
    Ok(kind)
}
