//! Statistics.db: a list of parts. One of them, the serialization header, is required to read the
//! data.

pub(crate) mod collector;
pub mod drop_times;
pub mod header;
pub mod histogram;
pub(crate) mod sketch;
pub mod stats;

use crate::error::Error;
use crate::generation::Version;
use crate::input::{Fault, Input, Parsed, write_utf};
use header::Header;
use sketch::Sketch;
use stats::Stats;
use std::path::Path;

const PARTITIONER: &str = "org.apache.cassandra.dht.Murmur3Partitioner";
/// The most parts that a file may have.
const MAX_PARTS: u32 = 64;

/// The contents of Statistics.db.
#[derive(Clone, Debug)]
pub(crate) struct Statistics {
    pub stats: Stats,
    pub header: Header,
    /// The estimated number of partitions, from the sketch.
    pub cardinality: Option<u64>,
    /// The chance of a false positive for which the filter was sized.
    pub bloom_fp_chance: f64,
}

impl Statistics {
    /// Parses the file.
    pub fn read(bytes: &[u8], version: Version, file: &Path) -> Result<Self, Error> {
        let mut parts: [Option<&[u8]>; 4] = [None; 4];
        let list = list_parts(bytes, version).map_err(|fault| fault.at(file, 0))?;
        for (i, &(kind, start)) in list.iter().enumerate() {
            let end = list.get(i + 1).map_or(bytes.len(), |&(_, end)| end);
            let part = bytes
                .get(start..end)
                .ok_or_else(|| Error::corrupt(file, start as u64, "the position of a part is not valid"))?;
            let part = if version.is_n() { checked(part).map_err(|fault| fault.at(file, start as u64))? } else { part };
            if let Some(slot) = parts.get_mut(kind as usize) {
                *slot = Some(part);
            }
        }
        let part = |kind: usize, name: &str| {
            parts[kind].ok_or_else(|| Error::corrupt(file, 0, format!("the {name} part is missing")))
        };
        let at = |part: &[u8]| (part.as_ptr() as usize - bytes.as_ptr() as usize) as u64;
        let validation = part(0, "validation")?;
        let (partitioner, bloom_fp_chance) =
            read_validation(validation).map_err(|fault| fault.at(file, at(validation)))?;
        if partitioner != PARTITIONER {
            return Err(Error::Unsupported(format!("{}: partitioner {partitioner}", file.display())));
        }
        let stats_part = part(2, "stats")?;
        let stats = Stats::read(&mut Input(stats_part), version).map_err(|fault| fault.at(file, at(stats_part)))?;
        let header_part = part(3, "header")?;
        let header = Header::read(&mut Input(header_part)).map_err(|fault| fault.at(file, at(header_part)))?;
        let cardinality = match parts[1] {
            Some(part) => Sketch::estimate(part).unwrap_or(None),
            None => None,
        };
        Ok(Statistics { stats, header, cardinality, bloom_fp_chance })
    }

    /// Changes the level in the bytes of a file of version `me`.
    pub fn set_level(bytes: &mut [u8], level: u32) -> Parsed<()> {
        let list = list_parts(bytes, Version::Me)?;
        let &(_, start) = list.iter().find(|(kind, _)| *kind == 2).ok_or(Fault::Bad("the stats part is missing"))?;
        let at = start + Stats::level_at(bytes.get(start..).ok_or(Fault::Short)?)?;
        bytes.get_mut(at..at + 4).ok_or(Fault::Short)?.copy_from_slice(&level.to_be_bytes());
        Ok(())
    }

    /// The bytes of the file.
    pub fn write(stats: &Stats, header: &Header, bloom_fp_chance: f64, sketch: &Sketch) -> Vec<u8> {
        let mut validation = Vec::new();
        write_utf(PARTITIONER, &mut validation);
        validation.extend_from_slice(&bloom_fp_chance.to_be_bytes());
        let (mut compaction, mut body, mut tail) = (Vec::new(), Vec::new(), Vec::new());
        sketch.write(&mut compaction);
        stats.write(&mut body);
        header.write(&mut tail);
        let parts = [validation, compaction, body, tail];
        let mut out = (parts.len() as u32).to_be_bytes().to_vec();
        let mut at = 4 + 8 * parts.len();
        for (kind, part) in parts.iter().enumerate() {
            out.extend_from_slice(&(kind as u32).to_be_bytes());
            out.extend_from_slice(&(at as u32).to_be_bytes());
            at += part.len();
        }
        for part in parts {
            out.extend_from_slice(&part);
        }
        out
    }
}

/// The type and offset of each part, by offset; old writers did not sort them.
fn list_parts(bytes: &[u8], version: Version) -> Parsed<Vec<(u32, usize)>> {
    let mut input = Input(bytes);
    let count = input.be32()?;
    if count > MAX_PARTS {
        return Err(Fault::Bad("there are too many parts"));
    }
    if version.is_n() && input.be32()? != crc32fast::hash(&bytes[..4]) {
        return Err(Fault::Bad("the checksum of the number of parts is wrong"));
    }
    let mut list = Vec::new();
    let start = input.0;
    for _ in 0..count {
        list.push((input.be32()?, input.be32()? as usize));
    }
    if version.is_n() {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[..4]);
        hasher.update(&start[..8 * count as usize]);
        if input.be32()? != hasher.finalize() {
            return Err(Fault::Bad("the checksum of the list of parts is wrong"));
        }
    }
    list.sort_by_key(|&(_, offset)| offset);
    Ok(list)
}

/// A part without the checksum at its end.
fn checked(part: &[u8]) -> Parsed<&[u8]> {
    let (body, sum) = part.split_last_chunk::<4>().ok_or(Fault::Short)?;
    if crc32fast::hash(body) == u32::from_be_bytes(*sum) {
        Ok(body)
    } else {
        Err(Fault::Bad("the checksum of a part is wrong"))
    }
}

fn read_validation(part: &[u8]) -> Parsed<(&str, f64)> {
    let mut input = Input(part);
    Ok((input.utf()?, input.f64()?))
}
