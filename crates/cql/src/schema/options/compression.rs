//! The `compression` option.

use super::properties::{boolean, int};
use crate::error::Error;
use model::options::OptionMap;

const PACKAGE: &str = "org.apache.cassandra.io.compress.";
const CLASS: &str = "sstable_compression";
const CHUNK: &str = "chunk_length_in_kb";

/// The largest chunk, in KiB.
const MAX_CHUNK_KB: i32 = 1024;

/// The stored form of the option: `sstable_compression` with its package, and `chunk_length_in_kb`.
/// An empty map means no compression, as ScyllaDB describes it.
pub fn stored(mut written: OptionMap, warnings: &mut Vec<String>) -> Result<OptionMap, Error> {
    for (other, name) in [("class", CLASS), ("chunk_length_kb", CHUNK)] {
        if let Some(value) = written.remove(other)
            && written.insert(name.to_owned(), value).is_some()
        {
            return Err(refused(format!("'{other}' and '{name}' are the same option: give one of them")));
        }
    }
    let enabled = written.remove("enabled").map_or(Ok(true), |value| boolean("enabled", &value))?;
    let class = written.remove(CLASS);
    let none = || Ok(OptionMap::new());
    let class = match class.as_deref() {
        _ if !enabled && written.is_empty() => return none(),
        None if written.is_empty() => return none(),
        None => return Err(refused(format!("Missing sub-option '{CLASS}' for the 'compression' option."))),
        Some("") => return none(),
        Some(class) => known_class(class, warnings)?,
    };
    for (name, value) in &written {
        check(name, value)?;
    }
    if !enabled {
        return none();
    }
    written.insert(CLASS.to_owned(), format!("{PACKAGE}{class}"));
    Ok(written)
}

fn refused(message: impl Into<String>) -> Error {
    Error::Configuration(message.into())
}

fn known_class(written: &str, warnings: &mut Vec<String>) -> Result<&'static str, Error> {
    let class = match written.strip_prefix(PACKAGE).unwrap_or(written) {
        "LZ4Compressor" => "LZ4Compressor",
        "SnappyCompressor" => "SnappyCompressor",
        "DeflateCompressor" => "DeflateCompressor",
        "ZstdCompressor" => "ZstdCompressor",
        "LZ4WithDictsCompressor" => {
            warnings.push("Compression dictionaries are not supported yet: LZ4Compressor is used".to_owned());
            "LZ4Compressor"
        }
        "ZstdWithDictsCompressor" => {
            warnings.push("Compression dictionaries are not supported yet: ZstdCompressor is used".to_owned());
            "ZstdCompressor"
        }
        _ => return Err(refused(format!("Unsupported compression class '{written}'."))),
    };
    Ok(class)
}

fn check(name: &str, value: &str) -> Result<(), Error> {
    match name {
        CHUNK => {
            let length = int(name, value)?;
            if length <= 0 {
                return Err(refused(format!("Invalid negative or null for {CHUNK}/chunk_length_kb")));
            }
            if length.count_ones() != 1 {
                return Err(refused(format!("{CHUNK}/chunk_length_kb must be a power of 2.")));
            }
            if length > MAX_CHUNK_KB {
                return Err(refused(format!("{CHUNK}/chunk_length_kb must be {MAX_CHUNK_KB} or less.")));
            }
            Ok(())
        }
        "crc_check_chance" => match value.trim().parse::<f64>() {
            Ok(chance) if (0.0..=1.0).contains(&chance) => Ok(()),
            _ => Err(refused("crc_check_chance must be between 0.0 and 1.0.")),
        },
        "compression_level" => int(name, value).map(|_| ()),
        _ => Err(refused(format!("Unknown compression option '{name}'."))),
    }
}
