//! The wire form of a read command and of a page.

use super::codec::{Reader, Writer};
use crate::output::{Output, OutputColumn};
use crate::page::{Page, PageEnd, Position, Region};
use crate::reduce::Reduction;
use crate::request::{Limits, ReadCommand};
use model::aggregate::AggregateKind;
use model::id::{ColumnId, QueryId, SchemaVersion, TableId};
use model::key::{Clustering, ClusteringCut, DecoratedKey, RingCut};
use model::range::{PartitionRange, Resume, RowRange, Slice};
use model::token::Token;
use std::rc::Rc;

pub(super) fn write(command: &ReadCommand, out: &mut Writer) {
    debug_assert!(!command.ranges.is_empty(), "a read names partitions");
    debug_assert!(command.limits.rows > 0, "a read asks for rows");
    out.raw(command.table.as_bytes());
    out.raw(command.schema_version.as_bytes());
    out.list(&command.ranges, |out, range| {
        write_ring_cut(&range.start, out);
        write_ring_cut(&range.end, out);
    });
    write_slice(&command.slice, out);
    out.list(&command.output.columns, |out, column| {
        let (kind, number) = column_code(*column);
        out.u8(kind);
        out.u16(number);
    });
    out.bool(command.output.static_only_rows);
    out.bool(command.output.distinct);
    let limits = &command.limits;
    for number in [limits.rows, limits.per_partition, limits.bytes, limits.tombstones, limits.unpaged_bytes] {
        out.u64(number);
    }
    out.bool(limits.paged);
    out.u32(command.now as u32);
    out.u64(command.resumed_rows);
    out.bool(command.bypass_cache);
    out.option(command.query.as_ref(), |out, id| out.raw(id.as_bytes()));
    out.bool(command.first_page);
    out.bool(command.ends_with_rows);
    out.list(&command.output.reductions, |out, reduction| {
        out.u8(reduction.kind as u8);
        out.option(reduction.column, |out, column| out.u16(column));
    });
}

pub(super) fn read(reader: &mut Reader<'_>) -> Option<ReadCommand> {
    let table = TableId::from_bytes(reader.array()?);
    let schema_version = SchemaVersion::from_bytes(reader.array()?);
    let ranges =
        reader.list(|reader| Some(PartitionRange { start: read_ring_cut(reader)?, end: read_ring_cut(reader)? }))?;
    let slice = Rc::new(read_slice(reader)?);
    let columns = reader.list(|reader| column_from_code(reader.u8()?, reader.u16()?))?;
    let mut output = Output::new(columns, reader.bool()?, reader.bool()?);
    let limits = Limits {
        rows: reader.u64()?,
        per_partition: reader.u64()?,
        bytes: reader.u64()?,
        tombstones: reader.u64()?,
        unpaged_bytes: reader.u64()?,
        paged: reader.bool()?,
    };
    let now = reader.u32()? as i32;
    let resumed_rows = reader.u64()?;
    let bypass_cache = reader.bool()?;
    let query = reader.option(|reader| reader.array().map(QueryId::from_bytes))?;
    let (first_page, ends_with_rows) = (reader.bool()?, reader.bool()?);
    output.reductions = reader.list(|reader| {
        Some(Reduction { kind: AggregateKind::from_code(reader.u8()?)?, column: reader.option(Reader::u16)? })
    })?;
    Some(ReadCommand {
        table,
        schema_version,
        ranges: ranges.into(),
        slice,
        output: Rc::new(output),
        limits,
        now,
        resumed_rows,
        bypass_cache,
        query,
        first_page,
        ends_with_rows,
    })
}

fn column_code(column: OutputColumn) -> (u8, u16) {
    match column {
        OutputColumn::PartitionKey(i) => (0, i),
        OutputColumn::Clustering(i) => (1, i),
        OutputColumn::Value(id) => (2, id.0),
        OutputColumn::WriteTime(id) => (3, id.0),
        OutputColumn::Ttl(id) => (4, id.0),
        OutputColumn::Elements(id) => (5, id.0),
        OutputColumn::CellTimes(id) => (6, id.0),
    }
}

fn column_from_code(kind: u8, number: u16) -> Option<OutputColumn> {
    Some(match kind {
        0 => OutputColumn::PartitionKey(number),
        1 => OutputColumn::Clustering(number),
        2 => OutputColumn::Value(ColumnId(number)),
        3 => OutputColumn::WriteTime(ColumnId(number)),
        4 => OutputColumn::Ttl(ColumnId(number)),
        5 => OutputColumn::Elements(ColumnId(number)),
        6 => OutputColumn::CellTimes(ColumnId(number)),
        _ => return None,
    })
}

fn write_ring_cut(cut: &RingCut, out: &mut Writer) {
    out.u64(cut.token.0 as u64);
    out.option(cut.key.as_ref(), |out, key| out.bytes(key));
    out.bool(cut.after);
}

fn read_ring_cut(reader: &mut Reader<'_>) -> Option<RingCut> {
    Some(RingCut { token: Token(reader.u64()? as i64), key: reader.option(Reader::bytes)?, after: reader.bool()? })
}

fn write_rows(rows: &[RowRange], out: &mut Writer) {
    out.list(rows, |out, range| {
        for cut in [&range.start, &range.end] {
            out.bytes(&cut.prefix.0);
            out.bool(cut.after);
        }
    });
}

fn read_rows(reader: &mut Reader<'_>) -> Option<Vec<RowRange>> {
    let cut =
        |reader: &mut Reader<'_>| Some(ClusteringCut { prefix: Clustering(reader.bytes()?), after: reader.bool()? });
    reader.list(|reader| Some(RowRange { start: cut(reader)?, end: cut(reader)? }))
}

fn write_slice(slice: &Slice, out: &mut Writer) {
    write_rows(&slice.rows, out);
    out.bool(slice.static_row);
    out.bool(slice.reversed);
    out.option(slice.resume.as_ref(), |out, resume| {
        out.bytes(&resume.key.key);
        write_rows(&resume.rows, out);
        out.bool(resume.static_row);
    });
}

fn read_slice(reader: &mut Reader<'_>) -> Option<Slice> {
    Some(Slice {
        rows: read_rows(reader)?,
        static_row: reader.bool()?,
        reversed: reader.bool()?,
        resume: reader.option(|reader| {
            Some(Resume {
                key: DecoratedKey::new(reader.bytes()?),
                rows: read_rows(reader)?,
                static_row: reader.bool()?,
            })
        })?,
    })
}

pub(super) fn write_position(position: &Position, out: &mut Writer) {
    out.bytes(&position.key);
    out.u8(position.region as u8);
    out.bytes(&position.prefix.0);
    out.u8(position.weight as u8);
}

pub(super) fn read_position(reader: &mut Reader<'_>) -> Option<Position> {
    Some(Position {
        key: reader.bytes()?,
        region: region_from_code(reader.u8()?)?,
        prefix: Clustering(reader.bytes()?),
        weight: reader.u8()? as i8,
    })
}

pub(super) fn write_page(page: &Page, out: &mut Writer) {
    out.u64(page.rows);
    out.shared(&page.body);
    out.option(page.last.as_ref(), |out, position| write_position(position, out));
    out.u64(page.rows_in_last);
    out.u8(page.end as u8);
    for number in [page.tombstones, page.examined_rows, page.examined_bytes] {
        out.u64(number);
    }
}

pub(super) fn read_page(reader: &mut Reader<'_>) -> Option<Page> {
    Some(Page {
        rows: reader.u64()?,
        body: reader.bytes()?,
        last: reader.option(read_position)?,
        rows_in_last: reader.u64()?,
        end: PageEnd::from_code(reader.u8()?)?,
        tombstones: reader.u64()?,
        examined_rows: reader.u64()?,
        examined_bytes: reader.u64()?,
    })
}

/// Decodes the number of a region in the wire form and in paging states.
pub fn region_from_code(code: u8) -> Option<Region> {
    [Region::Start, Region::Static, Region::Clustered, Region::End].into_iter().find(|region| *region as u8 == code)
}
