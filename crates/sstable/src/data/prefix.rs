//! Clustering prefixes: groups of 32 values, each after a header with bits for empty and null
//! values.

use crate::input::{Fault, Input, Parsed, write_vbytes};
use model::key::{Components, MAX_KEY_BYTES, push_component};
use model::types::vint::write_unsigned;

const GROUP: usize = 32;

/// Reads one value per width, and appends them in their form in memory. Trailing nulls (old compact
/// tables) end the prefix.
#[inline]
pub(crate) fn read(input: &mut Input<'_>, widths: &[Option<usize>], out: &mut Vec<u8>) -> Parsed<()> {
    let mut ended = false;
    for group in widths.chunks(GROUP) {
        let header = input.uvint()?;
        for (i, width) in group.iter().enumerate() {
            let bits = header >> (2 * i) & 3;
            if bits & 2 != 0 {
                ended = true;
                continue;
            }
            if ended {
                return Err(Fault::Bad("a clustering value follows a null"));
            }
            let value = match (bits, width) {
                (1, _) => &[][..],
                (_, Some(width)) => input.take(*width)?,
                (_, None) => input.vbytes()?,
            };
            if value.len() > MAX_KEY_BYTES {
                return Err(Fault::Bad("a clustering value is too long"));
            }
            push_component(out, value);
        }
    }
    Ok(())
}

/// Writes the components of `prefix`. With `all`, missing ones are written as nulls, up to the
/// number of widths. The error is the index of a value of the wrong length, or of the first one
/// without a width.
pub(crate) fn write(prefix: &[u8], widths: &[Option<usize>], all: bool, out: &mut Vec<u8>) -> Result<(), usize> {
    let mut components = Components(prefix);
    let own = components.clone().count();
    if own > widths.len() {
        return Err(widths.len());
    }
    let count = if all { widths.len() } else { own };
    for first in (0..count).step_by(GROUP) {
        let group = &widths[first..count.min(first + GROUP)];
        let mut header = 0u64;
        let mut ahead = components.clone();
        for i in 0..group.len() {
            header |= match ahead.next() {
                None => 2 << (2 * i),
                Some([]) => 1 << (2 * i),
                Some(_) => 0,
            };
        }
        write_unsigned(header, out);
        for (i, width) in group.iter().enumerate() {
            match (components.next(), width) {
                (None | Some([]), _) => {}
                (Some(value), Some(width)) if value.len() == *width => out.extend_from_slice(value),
                (Some(_), Some(_)) => return Err(first + i),
                (Some(value), None) => write_vbytes(value, out),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::key::Clustering;

    #[test]
    fn prefixes_round_trip() {
        let widths: Vec<_> = (0..70).map(|i| if i % 3 == 0 { Some(4) } else { None }).collect();
        for count in [0, 1, 2, 31, 32, 33, 64, 70] {
            let values: Vec<&[u8]> = (0..count).map(|i| [&b""[..], b"abcd", b"wxyz"][i * 7 % 3]).collect();
            let prefix = Clustering::from_components(values);
            for all in [false, true] {
                let mut out = Vec::new();
                write(&prefix.0, &widths, all, &mut out).expect("lengths fit");
                let mut back = Vec::new();
                let mut input = Input(&out);
                read(&mut input, if all { &widths } else { &widths[..count] }, &mut back).expect("well formed");
                assert_eq!((&back[..], input.0.len()), (&prefix.0[..], 0));
            }
        }
        let wrong = Clustering::from_components([&b"abc"[..]]);
        assert_eq!(write(&wrong.0, &widths, false, &mut Vec::new()), Err(0));
        for (count, widths) in [(1, 0), (3, 2), (71, 70), (71, 1)] {
            let many = Clustering::from_components(std::iter::repeat_n(&b""[..], count));
            for all in [false, true] {
                assert_eq!(write(&many.0, &vec![None; widths], all, &mut Vec::new()), Err(widths));
            }
        }
    }
}
