//! The wire form of a part for reconciliation: a list of fragments, each `u8 kind, fields`, and the
//! position up to which they are complete.

use super::VERSION;
use super::codec::{Reader, Writer};
use super::command::{read_position, write_position};
use crate::fragments::{FragmentPage, is_well_formed};
use bytes::Bytes;
use model::fragment::Fragment;
use model::key::{Clustering, ClusteringCut, DecoratedKey, MAX_KEY_BYTES};
use model::row::{Malformed, Row};
use model::time::{Seconds, Timestamp, Tombstone};
use rt::Pieces;

pub(super) fn write(part: &FragmentPage, out: &mut Writer) {
    write_fragments(&part.fragments, out);
    out.option(part.last.as_ref(), |out, position| write_position(position, out));
}

fn write_fragments(fragments: &[Fragment], out: &mut Writer) {
    out.list(fragments, |out, fragment| match fragment {
        Fragment::PartitionStart { key, tombstone } => {
            out.u8(0);
            out.bytes(&key.key);
            write_tombstone(*tombstone, out);
        }
        Fragment::Static(row) => {
            out.u8(1);
            out.bytes(&row.0);
        }
        Fragment::Row { key, row } => {
            out.u8(2);
            out.bytes(&key.0);
            out.bytes(&row.0);
        }
        Fragment::Change { at, tombstone } => {
            out.u8(3);
            out.bytes(&at.prefix.0);
            out.bool(at.after);
            write_tombstone(*tombstone, out);
        }
        Fragment::PartitionEnd => out.u8(4),
    });
}

pub(super) fn read(reader: &mut Reader<'_>) -> Option<FragmentPage> {
    let fragments = read_fragments(reader)?;
    let last = reader.option(read_position)?;
    is_well_formed(&fragments).then_some(FragmentPage { fragments, last })
}

fn read_fragments(reader: &mut Reader<'_>) -> Option<Vec<Fragment>> {
    reader.list(|reader| {
        Some(match reader.u8()? {
            0 => {
                let key = reader.bytes().filter(|key| key.len() <= MAX_KEY_BYTES)?;
                Fragment::PartitionStart { key: DecoratedKey::new(key), tombstone: read_tombstone(reader)? }
            }
            1 => Fragment::Static(read_row(reader)?),
            2 => Fragment::Row { key: Clustering(reader.bytes()?), row: read_row(reader)? },
            3 => Fragment::Change {
                at: ClusteringCut { prefix: Clustering(reader.bytes()?), after: reader.bool()? },
                tombstone: read_tombstone(reader)?,
            },
            4 => Fragment::PartitionEnd,
            _ => return None,
        })
    })
}

/// Encodes a part of a stream of fragments.
pub fn encode_fragments(fragments: &[Fragment]) -> Pieces {
    let mut out = Writer::framed(VERSION);
    write_fragments(fragments, &mut out);
    out.finish()
}

/// Decodes what [`encode_fragments`] has encoded. Each row is well-formed. The order of the
/// fragments is not checked, because the stream may have begun earlier.
pub fn decode_fragments(bytes: &Bytes) -> Result<Vec<Fragment>, Malformed> {
    let mut reader = Reader::framed(std::slice::from_ref(bytes), VERSION).ok_or(Malformed("fragments"))?;
    read_fragments(&mut reader).ok_or(Malformed("fragments"))
}

fn read_row(reader: &mut Reader<'_>) -> Option<Row> {
    let bytes = reader.bytes()?;
    Row::check(&bytes).ok()?;
    Some(Row(bytes))
}

fn write_tombstone(tombstone: Tombstone, out: &mut Writer) {
    out.u64(tombstone.timestamp as u64);
    out.u32(tombstone.deletion_time as u32);
}

fn read_tombstone(reader: &mut Reader<'_>) -> Option<Tombstone> {
    Some(Tombstone { timestamp: reader.u64()? as Timestamp, deletion_time: reader.u32()? as Seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LargeKinds;
    use crate::digest::Digest;
    use crate::page::{Page, PageEnd, Position, Region};
    use crate::request::ReplicaResponse;
    use crate::wire::header::Report;
    use crate::wire::{Response, decode_response, encode_response};
    use model::ColumnId;
    use model::row::{Cell, Marker, RowBuilder};

    fn part() -> FragmentPage {
        let mut row = RowBuilder::new(Some(Marker::new(5)), Tombstone::LIVE);
        row.push(&Cell::live(ColumnId(1), 5, b"value"));
        let row = row.finish();
        let key = Clustering::from_components([&b"c"[..]]);
        FragmentPage {
            fragments: vec![
                Fragment::PartitionStart {
                    key: DecoratedKey::new(Bytes::from_static(b"k")),
                    tombstone: Tombstone::new(-3, 7),
                },
                Fragment::Static(row.clone()),
                Fragment::Change { at: ClusteringCut::before(key.clone()), tombstone: Tombstone::new(4, 8) },
                Fragment::Row { key: key.clone(), row },
                Fragment::Change { at: ClusteringCut::END, tombstone: Tombstone::LIVE },
                Fragment::PartitionEnd,
            ],
            last: Some(Position { key: Bytes::from_static(b"k"), region: Region::Clustered, prefix: key, weight: -1 }),
        }
    }

    fn page(body: Bytes) -> Page {
        Page {
            rows: 2,
            body,
            last: part().last,
            rows_in_last: 1,
            end: PageEnd::Rows,
            tombstones: 3,
            examined_rows: 4,
            examined_bytes: 5,
        }
    }

    #[test]
    fn responses_round_trip() {
        let digest = Digest { version: 1, hash: [9; 16] };
        let page = page(Bytes::from_static(b"rows"));
        for answer in [ReplicaResponse::Fragments(part().into()), ReplicaResponse::Digested(page.into(), digest)] {
            let response = Response::new(Ok(answer));
            let bytes = encode_response(&response).join();
            assert_eq!(decode_response(bytes.clone()).expect("it is well-formed"), response);
            for len in 0..bytes.len() {
                assert!(decode_response(bytes.slice(..len)).is_err(), "cut at {len}");
            }
        }
    }

    #[test]
    fn large_data_kinds_return_with_the_answer_of_a_write() {
        let large_data = LargeKinds::PARTITION.with(LargeKinds::ROW);
        let report = Report { large_data, ..Report::default() };
        let response = Response { report, ..Response::new(Ok(ReplicaResponse::Written)) };
        let bytes = encode_response(&response).join();
        assert_eq!(decode_response(bytes).expect("it is well-formed"), response);
        let plain = encode_response(&Response::new(Ok(ReplicaResponse::Written))).join();
        assert_eq!(plain.len(), 5 + 1 + 1, "an answer without large data takes no space for it");
    }

    #[test]
    fn the_rows_of_a_large_page_stay_where_they_are() {
        let rows = Bytes::from(vec![7; 100_000]);
        let response = Response::new(Ok(ReplicaResponse::Page(page(rows.clone()).into())));
        let pieces = encode_response(&response);
        assert!(pieces.iter().any(|piece| piece.as_ptr() == rows.as_ptr()));
        let decoded = decode_response(pieces.clone()).expect("it is well-formed");
        assert_eq!(decoded, response);
        assert!(matches!(decoded.result, Ok(ReplicaResponse::Page(page)) if page.body.as_ptr() == rows.as_ptr()));
        let len = pieces.len();
        let whole = pieces.join();
        assert_eq!(whole.len(), len);
        let decoded = decode_response(whole.clone()).expect("it is well-formed");
        assert_eq!(decoded, response);
        let own = whole.as_ptr_range();
        assert!(matches!(decoded.result, Ok(ReplicaResponse::Page(page)) if own.contains(&page.body.as_ptr())));
    }

    #[test]
    fn a_part_that_starts_inside_a_partition_round_trips() {
        let mut fragments = part().fragments;
        fragments.drain(..2);
        let bytes = encode_fragments(&fragments).join();
        assert_eq!(decode_fragments(&bytes).expect("it is well-formed"), fragments);
        for len in 0..bytes.len() {
            assert!(decode_fragments(&bytes.slice(..len)).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn streams_that_no_reader_makes_are_refused() {
        let mut bad = part();
        bad.fragments.swap(1, 3);
        let bytes = encode_response(&Response::new(Ok(ReplicaResponse::Fragments(bad.into()))));
        assert!(decode_response(bytes).is_err());
    }
}
