//! The door for fuzzers: everything that a client's bytes reach before the language.

use super::{Compression, Frames, Next, Request};

/// Bodies are refused beyond this.
const MAX_BODY: usize = 1 << 20;

/// Decodes `bytes` as the start of a connection, with each compression. Panics only if there is a defect.
pub fn fuzz_frame(bytes: &[u8]) {
    for compression in [None, Some(Compression::Lz4), Some(Compression::Snappy)] {
        let mut frames = Frames::new(MAX_BODY);
        for part in bytes.chunks(997) {
            frames.push(part);
            loop {
                match frames.take_next() {
                    Next::Incomplete => break,
                    Next::Frame(frame) => {
                        // Whether it is a request or an error is the client's business; it must only not panic.
                        let _ = Request::decode(frame, compression, MAX_BODY);
                    }
                    Next::Refused(refused) if refused.fatal => return,
                    Next::Refused(_) => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_panic(
            frames in prop::collection::vec(
                (3u8..5, any::<u8>(), any::<i16>(), 0u8..17, prop::collection::vec(any::<u8>(), 0..80), -2i8..3),
                0..6,
            ),
        ) {
            let mut bytes = Vec::new();
            for (version, flags, stream, opcode, body, wrong) in frames {
                bytes.extend([version, flags]);
                bytes.extend(stream.to_be_bytes());
                bytes.push(opcode);
                bytes.extend((body.len() as i32 + i32::from(wrong)).to_be_bytes());
                bytes.extend(body);
            }
            fuzz_frame(&bytes);
        }
    }
}
