//! The first bytes of an LZ4 block: `lz4_flex` can only decompress a whole block, and a few hundred
//! bytes can become 128 KiB.

/// Decompresses the beginning of an LZ4 block into `out`. `None` if the block ends before, or is
/// damaged.
pub(super) fn open_beginning(mut block: &[u8], out: &mut [u8]) -> Option<()> {
    /// The shortest repetition.
    const MIN_MATCH: usize = 4;
    let mut filled = 0;
    loop {
        let token = usize::from(*block.split_off_first()?);
        let literals = lz4_length(token >> 4, &mut block)?;
        let copied = literals.min(out.len() - filled);
        out[filled..filled + copied].copy_from_slice(block.get(..copied)?);
        filled += copied;
        if filled == out.len() {
            return Some(());
        }
        block = block.get(literals..)?;
        let distance = usize::from(u16::from_le_bytes([*block.split_off_first()?, *block.split_off_first()?]));
        let end = out.len().min(filled + MIN_MATCH + lz4_length(token & 0xF, &mut block)?);
        let from = filled.checked_sub(distance).filter(|from| *from < filled)?;
        // The source may overlap the target.
        for at in filled..end {
            out[at] = out[from + at - filled];
        }
        filled = end;
        if filled == out.len() {
            return Some(());
        }
    }
}

/// A length of an LZ4 block: four bits of the token, and further bytes.
fn lz4_length(nibble: usize, block: &mut &[u8]) -> Option<usize> {
    let mut len = nibble;
    let mut last = if nibble == 0xF { u8::MAX } else { 0 };
    while last == u8::MAX {
        last = *block.split_off_first()?;
        len += usize::from(last);
    }
    Some(len)
}
