//! The entry for fuzzers: all code that handles a client's bytes before the query processor.

use super::segment::{self, Form, Header};
use super::{Compression, Dialect, Frames, Next, Request};

/// Longer bodies are refused. In bytes.
const MAX_BODY: usize = 1 << 20;

/// Decodes `bytes` as the start of a connection, with each compression; as segments; and as
/// payloads of valid segments, which random bytes never are. Panics only on a defect.
pub fn fuzz_frame(bytes: &[u8]) {
    for compression in [None, Some(Compression::Lz4), Some(Compression::Snappy)] {
        decode(Frames::new(MAX_BODY), bytes, Dialect { compression, metadata_ids: compression.is_some() });
    }
    for form in [Form::Plain, Form::Lz4] {
        let begin = || {
            let mut frames = Frames::new(MAX_BODY);
            frames.use_segments(form);
            frames
        };
        decode(begin(), bytes, Dialect::default());
        decode(begin(), &in_segments(form, bytes), Dialect::default());
    }
}

fn decode(mut frames: Frames, bytes: &[u8], dialect: Dialect) {
    frames.started();
    for part in bytes.chunks(997) {
        frames.push(part);
        loop {
            match frames.take_next() {
                Next::Incomplete if frames.waits_for_memory() => frames.grant(),
                Next::Incomplete => break,
                Next::Frame(frame) => {
                    // The result does not matter; it must only not panic.
                    let _ = Request::decode(frame, dialect, MAX_BODY);
                }
                Next::Refused(refused) if refused.fatal => return,
                Next::Refused(_) => {}
            }
        }
    }
}

/// Builds segments from bytes: two of them give the length and the claims of each segment.
fn in_segments(form: Form, mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let [len, claims, rest @ ..] = bytes {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        let opened = if form == Form::Lz4 { usize::from(claims >> 1) } else { 0 };
        let mut header = vec![0; form.header_len()];
        Header { payload: payload.len(), opened, self_contained: claims & 1 != 0 }.write(form, &mut header);
        out.extend_from_slice(&header);
        out.extend_from_slice(payload);
        out.extend_from_slice(&segment::payload_crc(&[payload]).to_le_bytes());
        bytes = rest;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_panic(
            frames in prop::collection::vec(
                (3u8..6, any::<u8>(), any::<i16>(), 0u8..17, prop::collection::vec(any::<u8>(), 0..80), -2i8..3),
                0..6,
            ),
            // How each frame is put into a segment: its length and its claims, which may be wrong.
            segments in prop::collection::vec((-3i16..4, any::<u8>()), 6),
        ) {
            let (mut plain, mut cut) = (Vec::new(), Vec::new());
            for ((version, flags, stream, opcode, body, wrong), (more, claims)) in frames.into_iter().zip(segments) {
                let mut frame = vec![version, flags];
                frame.extend(stream.to_be_bytes());
                frame.push(opcode);
                frame.extend((body.len() as i32 + i32::from(wrong)).to_be_bytes());
                frame.extend(body);
                cut.extend([(frame.len() as i16 + more.min(0)) as u8, claims & if more < 2 { 1 } else { 0xFF }]);
                cut.extend(&frame);
                plain.extend(frame);
            }
            fuzz_frame(&plain);
            fuzz_frame(&cut);
        }
    }
}
