//! Frames and segments: split at any position, too long, damaged.

use super::*;
use proptest::prelude::*;

fn frame(version: u8, opcode: u8, stream: i16, body: &[u8]) -> Vec<u8> {
    let mut out = vec![version, 0];
    out.extend(stream.to_be_bytes());
    out.push(opcode);
    out.extend((body.len() as i32).to_be_bytes());
    out.extend(body);
    out
}

fn refused(next: Next) -> Refused {
    match next {
        Next::Refused(refused) => refused,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn frames_are_found_however_they_arrive(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20),
        cuts in prop::collection::vec(1usize..200, 1..50),
    ) {
        let bytes: Vec<u8> =
            bodies.iter().enumerate().flat_map(|(i, body)| frame(4, 5, i as i16, body)).collect();
        let mut frames = Frames::new(1000);
        let mut found = Vec::new();
        let (mut at, mut cuts) = (0, cuts.iter().cycle());
        while at < bytes.len() {
            let end = bytes.len().min(at + cuts.next().copied().unwrap_or(1));
            frames.push(&bytes[at..end]);
            at = end;
            loop {
                match frames.take_next() {
                    Next::Incomplete => break,
                    Next::Frame(frame) => found.push(frame.body.to_vec()),
                    Next::Refused(refused) => panic!("{refused:?}"),
                }
            }
        }
        prop_assert_eq!(found, bodies);
    }

    #[test]
    fn too_long_bodies_are_passed_over(cut in 1usize..4000) {
        let mut bytes = frame(4, 5, 1, &[0; 2000]);
        bytes.extend(frame(4, 5, 2, &[1; 10]));
        let mut frames = Frames::new(100);
        let mut seen = Vec::new();
        for part in bytes.chunks(cut) {
            frames.push(part);
            loop {
                match frames.take_next() {
                    Next::Incomplete => break,
                    Next::Frame(frame) => seen.push((frame.stream, true)),
                    Next::Refused(refused) => {
                        prop_assert!(!refused.fatal);
                        seen.push((refused.stream, false));
                    }
                }
            }
            prop_assert!(frames.buffered() <= 200 + cut);
        }
        prop_assert_eq!(seen, vec![(1, false), (2, true)]);
    }
}

#[test]
fn unknown_versions_are_answered_in_one_the_client_can_read() {
    for (version, answer) in [(66u8, 4u8), (65, 4), (6, 4), (7, 4), (2, 2), (1, 1), (0, 4), (71, 4)] {
        let mut frames = Frames::new(100);
        frames.push(&frame(version, 1, 5, b"xxxx"));
        let refused = refused(frames.take_next());
        assert!(refused.fatal);
        assert_eq!(refused.version, answer, "version {version}");
        let message = refused.error.to_string();
        assert!(message.contains(&format!("unsupported protocol version ({version});")), "{message}");
        if version > 2 {
            assert_eq!(refused.stream, 5);
        }
    }
}

#[test]
fn wrong_opcodes_keep_the_stream_and_wrong_lengths_end_it() {
    let mut frames = Frames::new(100);
    frames.push(&frame(4, 0x44, 3, b"abc"));
    frames.push(&frame(3, 5, 4, b""));
    let first = refused(frames.take_next());
    assert_eq!((first.stream, first.fatal), (3, false));
    assert!(matches!(frames.take_next(), Next::Frame(RawFrame { stream: 4, version: Version::V3, .. })));
    frames.push(&[4, 0, 0, 9, 5, 0xFF, 0xFF, 0xFF, 0xFE]);
    let last = refused(frames.take_next());
    assert_eq!((last.stream, last.fatal), (9, true));
}

/// `payload` in a segment.
fn segment(form: Form, payload: &[u8], self_contained: bool) -> Vec<u8> {
    let closed = match form {
        Form::Plain => None,
        Form::Lz4 => segment::close(payload),
    };
    let bytes = closed.as_deref().unwrap_or(payload);
    let mut out = vec![0; form.header_len()];
    let opened = closed.as_ref().map_or(0, |_| payload.len());
    segment::Header { payload: bytes.len(), opened, self_contained }.write(form, &mut out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(&segment::payload_crc(&[bytes]).to_le_bytes());
    out
}

fn in_segments(form: Form, max_body: usize) -> Frames {
    let mut frames = Frames::new(max_body);
    frames.started();
    frames.use_segments(form);
    frames
}

fn any_form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Plain), Just(Form::Lz4)]
}

proptest! {
    #[test]
    fn frames_are_found_in_segments_however_they_are_cut(
        form in any_form(),
        // Frames that share a segment; for a long frame, the bytes in each of its segments.
        groups in prop::collection::vec(
            (prop::collection::vec(0usize..300, 1..5), prop::option::of(1usize..200)), 1..8),
        cuts in prop::collection::vec(1usize..200, 1..50),
    ) {
        let (mut bytes, mut bodies) = (Vec::new(), Vec::new());
        for (lengths, step) in groups {
            let made: Vec<Vec<u8>> = lengths.iter().map(|len| vec![bodies.len() as u8; *len]).collect();
            match step {
                None => {
                    let payload: Vec<u8> = made.iter().flat_map(|body| frame(5, 5, 1, body)).collect();
                    bytes.extend(segment(form, &payload, true));
                    bodies.extend(made);
                }
                Some(step) => {
                    for part in frame(5, 5, 1, &made[0]).chunks(step) {
                        bytes.extend(segment(form, part, false));
                    }
                    bodies.push(made[0].clone());
                }
            }
        }
        let mut frames = in_segments(form, 1000);
        let mut found = Vec::new();
        let (mut at, mut cuts) = (0, cuts.iter().cycle());
        while at < bytes.len() {
            let end = bytes.len().min(at + cuts.next().copied().unwrap_or(1));
            frames.push(&bytes[at..end]);
            at = end;
            loop {
                match frames.take_next() {
                    Next::Incomplete => break,
                    Next::Frame(frame) => found.push(frame.body.to_vec()),
                    Next::Refused(refused) => panic!("{refused:?}"),
                }
            }
        }
        prop_assert_eq!(found, bodies);
        prop_assert_eq!((frames.buffered(), frames.incomplete_len()), (0, 0));
    }

    #[test]
    fn damage_ends_the_stream(form in any_form(), len in 0usize..200, bit in any::<prop::sample::Index>()) {
        let mut bytes = segment(form, &frame(5, 5, 1, &vec![3; len]), true);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut frames = in_segments(form, 1000);
        frames.push(&bytes);
        let refused = refused(frames.take_next());
        prop_assert!(refused.fatal && refused.version == 5);
        prop_assert!(refused.error.to_string().contains("Damaged segment"), "{}", refused.error);
    }

    #[test]
    fn too_long_bodies_are_passed_over_in_segments(form in any_form(), step in 1usize..3000) {
        let mut bytes: Vec<u8> =
            frame(5, 5, 1, &[0; 2000]).chunks(step).flat_map(|part| segment(form, part, false)).collect();
        bytes.extend(segment(form, &[frame(5, 5, 2, &[1; 2000]), frame(5, 5, 3, b"a")].concat(), true));
        let mut frames = in_segments(form, 100);
        frames.push(&bytes);
        let mut seen = Vec::new();
        loop {
            match frames.take_next() {
                Next::Incomplete => break,
                Next::Frame(frame) => seen.push((frame.stream, true)),
                Next::Refused(refused) => {
                    prop_assert!(!refused.fatal);
                    seen.push((refused.stream, false));
                }
            }
        }
        prop_assert_eq!(seen, vec![(1, false), (2, false), (3, true)]);
    }
}

#[test]
fn segments_that_do_not_fit_together_end_the_stream() {
    let whole = frame(5, 5, 1, &[7; 50]);
    let part = segment(Form::Plain, &whole[..20], false);
    let cases = [
        (segment(Form::Plain, &whole[..30], true), "ends within a frame"),
        ([part.clone(), segment(Form::Plain, &whole, true)].concat(), "in the middle of a frame"),
        ([part, segment(Form::Plain, &[&whole[20..], b"x"].concat(), false)].concat(), "before its last one"),
        (segment(Form::Plain, &[0x85; 9], true), "a response"),
        (segment(Form::Plain, &[66, 0, 0, 0, 5, 0, 0, 0, 0], true), "unsupported protocol version (66)"),
    ];
    for (bytes, why) in cases {
        let mut frames = in_segments(Form::Plain, 1000);
        frames.push(&bytes);
        let refused = refused(frames.take_next());
        assert!(refused.fatal && refused.version == 5);
        assert!(refused.error.to_string().contains(why), "{} / {why}", refused.error);
    }
}

#[test]
fn a_long_frame_is_known_by_its_length() {
    let whole = frame(5, Opcode::Query as u8, 1, &[7; 600_000]);
    let mut frames = in_segments(Form::Plain, 1 << 20);
    for part in whole.chunks(segment::MAX_PAYLOAD) {
        assert!(matches!(frames.take_next(), Next::Incomplete));
        frames.push(&segment(Form::Plain, part, false));
        if frames.incomplete_len() > 0 {
            assert_eq!(frames.incomplete_len(), whole.len());
        }
    }
    assert!(matches!(frames.take_next(), Next::Incomplete));
    frames.grant();
    match frames.take_next() {
        Next::Frame(frame) => assert_eq!(frame.body.len(), 600_000),
        other => panic!("{other:?}"),
    }
    assert_eq!(frames.incomplete_len(), 0);
}

/// A few bytes become many when they are decompressed.
#[test]
fn segments_of_a_long_frame_are_opened_when_it_has_its_memory() {
    for form in [Form::Plain, Form::Lz4] {
        let long = frame(5, Opcode::Query as u8, 1, &[0; 900_000]);
        let mut bytes: Vec<u8> = long.chunks(form.max_payload()).flat_map(|part| segment(form, part, false)).collect();
        bytes.extend(segment(form, &frame(5, 5, 2, b"a"), true));
        let mut frames = in_segments(form, 1 << 20);
        frames.push(&bytes);
        for _ in 0..2 {
            assert!(matches!(frames.take_next(), Next::Incomplete));
            assert!(frames.waits_for_memory());
            assert_eq!(frames.incomplete_len(), long.len());
            assert!(frames.buffered() <= bytes.len() + segment::MAX_PAYLOAD);
        }
        frames.grant();
        assert!(!frames.waits_for_memory());
        assert!(matches!(frames.take_next(), Next::Frame(RawFrame { stream: 1, .. })));
        assert!(matches!(frames.take_next(), Next::Frame(RawFrame { stream: 2, .. })));
        // The next long frame needs memory of its own.
        frames.push(&bytes);
        assert!(matches!(frames.take_next(), Next::Incomplete));
        assert!(frames.waits_for_memory());
    }
}

#[test]
fn the_first_segment_of_a_long_frame_waits_for_nothing() {
    let long = frame(5, Opcode::Query as u8, 1, &[0; 900_000]);
    let mut frames = in_segments(Form::Lz4, 1 << 20);
    let second = segment(Form::Lz4, &long[100..200], false);
    frames.push(&segment(Form::Lz4, &long[..100], false));
    assert!(matches!(frames.take_next(), Next::Incomplete));
    for byte in &second {
        assert!(!frames.waits_for_memory(), "the next segment is incomplete");
        frames.push(&[*byte]);
    }
    assert!(frames.waits_for_memory());
}

/// A compressed segment of a few hundred bytes.
fn self_contained_zeros(stream: i16, len: usize) -> Vec<u8> {
    segment(Form::Lz4, &frame(5, Opcode::Query as u8, stream, &vec![0; len]), true)
}

#[test]
fn a_buffer_that_has_grown_is_held_until_it_is_shrunk() {
    let mut frames = Frames::new(1 << 20);
    assert_eq!(frames.held(), 0);
    let long = frame(4, Opcode::Options as u8, 1, &[7; 60_000]);
    frames.push(&long);
    frames.push(&long[..100]);
    assert!(matches!(frames.take_next(), Next::Frame(_)));
    assert!(frames.held() > 50_000, "{}", frames.held());
    frames.shrink();
    assert_eq!((frames.held(), frames.buffered()), (0, 100));
    frames.push(&long[100..]);
    assert!(matches!(frames.take_next(), Next::Frame(RawFrame { stream: 1, .. })));
}

#[test]
fn under_pressure_a_buffer_grows_only_for_a_frame_with_a_reservation() {
    let mut frames = Frames::new(1 << 20);
    frames.set_pressed(true);
    let long = frame(4, Opcode::Options as u8, 1, &[7; 60_000]);
    let mut at = 0;
    while at < FIRST_BUFFER {
        let space = frames.space(false);
        let n = (space.capacity() - space.len()).min(1000);
        assert!(n > 0);
        space.extend_from_slice(&long[at..at + n]);
        frames.arrived(n);
        at += n;
        assert!(matches!(frames.take_next(), Next::Incomplete));
        assert_eq!(frames.held(), 0);
    }
    assert_eq!((frames.incomplete_len(), frames.large_from()), (long.len(), FIRST_BUFFER));
    assert!(frames.space(true).capacity() >= long.len());
    assert_eq!(frames.held(), long.len() - FIRST_BUFFER);
}

#[test]
fn under_pressure_a_segment_is_opened_when_it_has_its_memory() {
    let mut frames = in_segments(Form::Lz4, 1 << 20);
    frames.set_pressed(true);
    let bytes = self_contained_zeros(1, 100_000);
    frames.push(&bytes);
    for _ in 0..2 {
        assert!(matches!(frames.take_next(), Next::Incomplete));
        assert!(frames.must_not_open() && frames.waits_for_memory());
        assert_eq!((frames.held(), frames.missing()), (0, 0));
    }
    assert_eq!(frames.opening_len(), bytes.len() + HEADER_LEN + 100_000);
    frames.grant();
    assert!(matches!(frames.take_next(), Next::Frame(RawFrame { stream: 1, .. })));
    // Each segment needs memory of its own. The end of the pressure ends the wait, too.
    frames.push(&bytes);
    assert!(matches!(frames.take_next(), Next::Incomplete));
    frames.set_pressed(false);
    assert!(matches!(frames.take_next(), Next::Frame(RawFrame { stream: 1, .. })));
    assert_eq!((frames.opening_len(), frames.held()), (0, 0));
}

#[test]
fn an_open_segment_is_held_until_its_last_frame_is_taken() {
    let mut frames = in_segments(Form::Lz4, 1 << 20);
    let payload = [frame(5, Opcode::Query as u8, 1, &[0; 50_000]), frame(5, Opcode::Query as u8, 2, &[0; 50_000])];
    frames.push(&segment(Form::Lz4, &payload.concat(), true));
    assert!(matches!(frames.take_next(), Next::Frame(RawFrame { stream: 1, .. })));
    assert_eq!((frames.held(), frames.has_opened()), (2 * payload[0].len(), true));
    assert!(matches!(frames.take_next(), Next::Frame(RawFrame { stream: 2, .. })));
    assert_eq!((frames.held(), frames.has_opened()), (0, false));
}

/// The length of a frame is known before its first long segment is opened, even if its header is
/// spread over several segments.
#[test]
fn the_length_of_a_long_frame_is_known_before_decompression() {
    let long = frame(5, Opcode::Query as u8, 1, &[0; 900_000]);
    for before in 0..HEADER_LEN {
        let mut frames = in_segments(Form::Lz4, 1 << 20);
        for byte in &long[..before] {
            frames.push(&segment(Form::Lz4, &[*byte], false));
            assert!(matches!(frames.take_next(), Next::Incomplete));
        }
        frames.push(&segment(Form::Lz4, &long[before..100_000], false));
        assert!(matches!(frames.take_next(), Next::Incomplete));
        assert_eq!(frames.incomplete_len(), long.len());
        assert!(frames.must_not_open() && frames.held() < 100, "{}", frames.held());
        frames.grant();
        assert!(matches!(frames.take_next(), Next::Incomplete));
        assert_eq!(frames.held(), long.len());
    }
}

#[test]
fn a_long_frame_in_a_single_segment_waits_for_its_memory() {
    let mut frames = in_segments(Form::Lz4, 1 << 20);
    frames.push(&segment(Form::Lz4, &frame(5, Opcode::Query as u8, 1, &[0; 100_000]), false));
    assert!(matches!(frames.take_next(), Next::Incomplete));
    assert!(frames.waits_for_memory(), "nothing else will come");
    frames.grant();
    assert!(matches!(frames.take_next(), Next::Frame(RawFrame { stream: 1, .. })));
    assert_eq!(frames.held(), 0);
}
