//! Small checksummed text files: one line with the kind of the file, then JSON.
//!
//! ```text
//! messina <kind> <format> <crc32 of the rest, 8 hex digits>\n
//! <JSON>
//! ```
//!
//! They are replaced entirely and durably ([`rt::fs::write_durably`]): after a crash the old or
//! the new text is there. A reader must never use the JSON of a file with a bad checksum or an
//! unknown format.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::Path;

/// The most bytes of a file. A list of a million sstables has some 40 MB.
const MOST_BYTES: u64 = 256 << 20;

/// Why a sealed text cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsealed {
    /// The text is damaged, or something else.
    #[error("{0}")]
    Corrupt(&'static str),
    /// It was written by a later release.
    #[error("format {found} is newer than {known}, the newest that this release supports")]
    Newer {
        /// Its format.
        found: u32,
        /// The newest known format.
        known: u32,
    },
}

/// The text of `value`.
pub(crate) fn seal<T: Serialize>(kind: &str, format: u32, value: &T) -> String {
    let json = match serde_json::to_string_pretty(value) {
        Ok(json) => json + "\n",
        Err(error) => panic!("a {kind} is always JSON: {error}"),
    };
    format!("messina {kind} {format} {:08x}\n{json}", crc32fast::hash(json.as_bytes()))
}

/// The value of a text made by [`seal`] with a format up to `known`.
pub(crate) fn unseal<T: DeserializeOwned>(kind: &str, known: u32, text: &[u8]) -> Result<T, Unsealed> {
    let text = std::str::from_utf8(text).map_err(|_| Unsealed::Corrupt("not text"))?;
    let (line, json) = text.split_once('\n').ok_or(Unsealed::Corrupt("no first line"))?;
    let words: Vec<&str> = line.split(' ').collect();
    let &["messina", found_kind, format, crc] = words.as_slice() else {
        return Err(Unsealed::Corrupt("the first line is not the header of a file of messina"));
    };
    if found_kind != kind {
        return Err(Unsealed::Corrupt("the first line names another kind of file"));
    }
    let format: u32 = format.parse().map_err(|_| Unsealed::Corrupt("the first line has no format number"))?;
    if crc != format!("{:08x}", crc32fast::hash(json.as_bytes())) {
        return Err(Unsealed::Corrupt("the checksum does not match"));
    }
    if format > known {
        return Err(Unsealed::Newer { found: format, known });
    }
    serde_json::from_str(json).map_err(|_| Unsealed::Corrupt("the JSON does not have the fields it should have"))
}

/// Why a required sealed file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unusable {
    /// For a message after the file's path.
    pub why: String,
    /// Something exists at the path.
    pub is_there: bool,
}

/// The value in the file at `path`, or why there is none. An error comes from the operating
/// system, or a later release wrote the file.
pub(crate) async fn read<T: DeserializeOwned>(path: &Path, kind: &str, known: u32) -> io::Result<Result<T, Unusable>> {
    let unusable = |why: String, is_there| Ok(Err(Unusable { why, is_there }));
    match rt::fs::metadata(path).await {
        Err(error) if rt::fs::is_absence(&error) => return unusable("is missing".into(), false),
        Err(error) => return Err(error),
        Ok(found) if found.is_dir => return unusable("is a directory, and should be a file".into(), true),
        Ok(found) if found.len > MOST_BYTES => return unusable(format!("has more than {MOST_BYTES} bytes"), true),
        Ok(_) => {}
    }
    let text = match rt::fs::read(path).await {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return unusable(format!("is {error}"), true),
        text => text?,
    };
    match unseal(kind, known, &text) {
        Ok(value) => Ok(Ok(value)),
        Err(Unsealed::Corrupt(why)) => unusable(format!("is damaged ({why})"), true),
        Err(newer) => Err(io::Error::other(newer)),
    }
}

/// Replaces the file at `path` durably.
pub(crate) async fn write<T: Serialize>(path: &Path, kind: &str, format: u32, value: &T) -> io::Result<()> {
    rt::fs::write_durably(path, seal(kind, format, value).as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_values_round_trip_and_damage_is_detected() {
        let text = seal("pot", 3, &vec![1, 2, 3]);
        assert_eq!(unseal::<Vec<i32>>("pot", 3, text.as_bytes()), Ok(vec![1, 2, 3]));
        assert_eq!(unseal::<Vec<i32>>("pot", 2, text.as_bytes()), Err(Unsealed::Newer { found: 3, known: 2 }));
        assert!(unseal::<Vec<i32>>("pan", 3, text.as_bytes()).is_err());
        assert!(unseal::<String>("pot", 3, text.as_bytes()).is_err());
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut bad = text.clone().into_bytes();
                bad[at] ^= 1 << bit;
                match unseal::<Vec<i32>>("pot", 3, &bad) {
                    Err(_) => {}
                    // The format number is outside the checksum; an older one is read as such.
                    Ok(_) => assert_eq!(text.as_bytes()[at], b'3', "byte {at} bit {bit}"),
                }
            }
        }
        for len in 0..text.len() {
            assert!(unseal::<Vec<i32>>("pot", 3, &text.as_bytes()[..len]).is_err(), "length {len}");
        }
    }
}
