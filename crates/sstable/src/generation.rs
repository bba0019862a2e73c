//! File names of sstables: version, generation, component.
//!
//! The form is `me-<generation>-big-<Component>`. A generation is a time UUID, or a number in files
//! of other databases. Messina writes UUIDs only.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use uuid::Uuid;

/// Identifies an sstable within its directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(Kind);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Number(u64),
    /// The time first, so that UUIDs are ordered by time.
    Uuid(u64, u64),
}

const TICKS_PER_SECOND: u64 = 10_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

impl Generation {
    /// A new generation, later than all that this shard made before.
    pub fn fresh() -> Self {
        Generation::from_uuid(rt::random::time_uuid())
    }

    /// The generation of a version 1 UUID.
    pub fn from_uuid(uuid: Uuid) -> Self {
        let (most, least) = uuid.as_u64_pair();
        let ticks = (most & 0x0fff) << 48 | (most >> 16 & 0xffff) << 32 | most >> 32;
        Generation(Kind::Uuid(ticks, least))
    }

    /// The generation of a number, as in older files.
    pub fn from_number(number: u64) -> Self {
        Generation(Kind::Number(number))
    }

    /// The version 1 UUID; `None` for a number.
    pub fn uuid(&self) -> Option<Uuid> {
        match self.0 {
            Kind::Number(_) => None,
            Kind::Uuid(ticks, least) => {
                let most = ticks << 32 | (ticks >> 32 & 0xffff) << 16 | 0x1000 | ticks >> 48;
                Some(Uuid::from_u64_pair(most, least))
            }
        }
    }
}

fn push_base36(mut value: u64, width: usize, out: &mut String) {
    let mut digits = [b'0'; 13];
    for digit in digits[..width].iter_mut().rev() {
        *digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[(value % 36) as usize];
        value /= 36;
    }
    out.extend(digits[..width].iter().map(|&d| d as char));
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Number(number) => number.fmt(f),
            Kind::Uuid(ticks, least) => {
                let seconds = ticks / TICKS_PER_SECOND;
                let mut out = String::with_capacity(28);
                push_base36(seconds / SECONDS_PER_DAY, 4, &mut out);
                out.push('_');
                push_base36(seconds % SECONDS_PER_DAY, 4, &mut out);
                out.push('_');
                push_base36(ticks % TICKS_PER_SECOND, 5, &mut out);
                push_base36(least, 13, &mut out);
                f.write_str(&out)
            }
        }
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the generation of an sstable")]
pub struct NotAGeneration;

impl FromStr for Generation {
    type Err = NotAGeneration;

    fn from_str(text: &str) -> Result<Self, NotAGeneration> {
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().map(Generation::from_number).map_err(|_| NotAGeneration);
        }
        let well_formed =
            text.len() == 28 && text.is_ascii() && text.as_bytes()[4] == b'_' && text.as_bytes()[9] == b'_';
        if !well_formed || text.bytes().any(|b| b.is_ascii_uppercase() || b == b'+') {
            return Err(NotAGeneration);
        }
        let number = |part: &str| u64::from_str_radix(part, 36).map_err(|_| NotAGeneration);
        let (days, seconds, ticks) = (number(&text[..4])?, number(&text[5..9])?, number(&text[10..15])?);
        let least = number(&text[15..])?;
        if seconds >= SECONDS_PER_DAY || ticks >= TICKS_PER_SECOND {
            return Err(NotAGeneration);
        }
        let ticks = (days * SECONDS_PER_DAY + seconds) * TICKS_PER_SECOND + ticks;
        if ticks >> 60 != 0 {
            return Err(NotAGeneration);
        }
        Ok(Generation(Kind::Uuid(ticks, least)))
    }
}

/// The version of the format. Messina writes `me` only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Version {
    /// `min_clustering` and `max_clustering` are not reliable.
    Mc,
    /// Has no host id.
    Md,
    /// The version that Messina writes.
    Me,
    /// Cassandra 4, without a host id.
    Na,
    /// Cassandra 4.
    Nb,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Version; 5] = [Version::Mc, Version::Md, Version::Me, Version::Na, Version::Nb];

    /// The two letters in file names.
    pub fn name(self) -> &'static str {
        match self {
            Version::Mc => "mc",
            Version::Md => "md",
            Version::Me => "me",
            Version::Na => "na",
            Version::Nb => "nb",
        }
    }

    /// Whether it is a version of Cassandra 4.
    pub(crate) fn is_n(self) -> bool {
        self >= Version::Na
    }

    pub(crate) fn has_host_id(self) -> bool {
        matches!(self, Version::Me | Version::Nb)
    }
}

/// A component: one file of an sstable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Component {
    /// The partitions.
    Data,
    /// A position for each partition, and blocks of rows of large partitions.
    Index,
    /// Every n-th key of the index.
    Summary,
    /// The bloom filter.
    Filter,
    /// Statistics and the serialization header.
    Statistics,
    /// The positions of compressed chunks.
    CompressionInfo,
    /// Checksums of the chunks of an uncompressed Data.db.
    Crc,
    /// The checksum of the entire Data.db.
    Digest,
    /// Checksums of all other components: see [`crate::checksums`].
    Checksums,
    /// The large partitions, rows and cells, if there are any: see [`crate::large`].
    LargeData,
    /// The list of components. The sstable is sealed once a file of this name exists.
    Toc,
    /// The list before sealing.
    TemporaryToc,
}

impl Component {
    /// All components.
    pub const ALL: [Component; 12] = [
        Component::Data,
        Component::Index,
        Component::Summary,
        Component::Filter,
        Component::Statistics,
        Component::CompressionInfo,
        Component::Crc,
        Component::Digest,
        Component::Checksums,
        Component::LargeData,
        Component::Toc,
        Component::TemporaryToc,
    ];

    /// The last part of the file name.
    pub fn name(self) -> &'static str {
        match self {
            Component::Data => "Data.db",
            Component::Index => "Index.db",
            Component::Summary => "Summary.db",
            Component::Filter => "Filter.db",
            Component::Statistics => "Statistics.db",
            Component::CompressionInfo => "CompressionInfo.db",
            Component::Crc => "CRC.db",
            Component::Digest => "Digest.crc32",
            Component::Checksums => "Checksums.db",
            Component::LargeData => "LargeData.db",
            Component::Toc => "TOC.txt",
            Component::TemporaryToc => "TOC.txt.tmp",
        }
    }

    /// The component with this name.
    pub fn named(name: &str) -> Option<Component> {
        Component::ALL.into_iter().find(|component| component.name() == name)
    }
}

/// The location of an sstable's files: directory and common part of their names.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SstablePath {
    /// The directory.
    pub dir: PathBuf,
    /// The version of the format.
    pub version: Version,
    /// The generation.
    pub generation: Generation,
}

impl SstablePath {
    /// The path of an sstable that Messina writes.
    pub fn new(dir: &Path, generation: Generation) -> Self {
        SstablePath { dir: dir.to_path_buf(), version: Version::Me, generation }
    }

    /// The path of a component.
    pub fn path(&self, component: Component) -> PathBuf {
        self.dir.join(self.file_name(component.name()))
    }

    /// The file name of a component, which may be unknown to Messina.
    pub fn file_name(&self, component: &str) -> String {
        format!("{}-{}-big-{component}", self.version.name(), self.generation)
    }

    /// Parses a file name. `None` for any other name, or a component that Messina does not know.
    pub fn parse_name(dir: &Path, name: &str) -> Option<(SstablePath, Component)> {
        let (version, generation, component) = split_name(name)?;
        let component = Component::named(component)?;
        Some((SstablePath { dir: dir.to_path_buf(), version, generation: generation.parse().ok()? }, component))
    }

    /// Like [`SstablePath::parse_name`], with the name of any component, known or not.
    pub fn of_file<'a>(dir: &Path, name: &'a str) -> Option<(SstablePath, &'a str)> {
        let (version, generation, component) = split_name(name)?;
        Some((SstablePath { dir: dir.to_path_buf(), version, generation: generation.parse().ok()? }, component))
    }
}

/// The version, generation and component in a file name.
fn split_name(name: &str) -> Option<(Version, &str, &str)> {
    let (version, rest) = name.split_once('-')?;
    let (generation, rest) = rest.split_once('-')?;
    let version = Version::ALL.into_iter().find(|v| v.name() == version)?;
    Some((version, generation, rest.strip_prefix("big-")?))
}

/// The format of a file that is named like an sstable's but cannot be read. `None` for any other
/// name.
pub fn unreadable_format(name: &str) -> Option<String> {
    let mut parts = name.splitn(4, '-');
    let (version, generation, layout, _component) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_version = version.len() == 2 && version.bytes().all(|b| b.is_ascii_lowercase());
    if !is_version || !matches!(layout, "big" | "bti") || generation.parse::<Generation>().is_err() {
        return None;
    }
    if layout == "big" && Version::ALL.into_iter().any(|known| known.name() == version) {
        return None;
    }
    let origin = match (version, layout) {
        (_, "bti") => ", of Cassandra 5 with a trie index",
        ("ms", _) => ", of ScyllaDB with a trie index",
        (name, _) if name >= "oa" => ", of Cassandra 5",
        (name, _) if name < "mc" => ", of Cassandra before 3.11",
        _ => "",
    };
    Some(format!("{version} ({layout}){origin}; mc, md, me, na and nb (big) can be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_round_trip() {
        let uuid = Uuid::from_u64_pair(0x1234_5678_9abc_1def, 0x8123_4567_89ab_cdef);
        let generation = Generation::from_uuid(uuid);
        assert_eq!(generation.uuid(), Some(uuid));
        let text = generation.to_string();
        assert_eq!(text.parse(), Ok(generation));
        assert_eq!(text.len(), 28);
        assert_eq!("17".parse(), Ok(Generation::from_number(17)));
        for bad in [
            "",
            "a",
            "-1",
            "3gsm_17kx_1m7yk2rabu8kc8hm6",
            "3gsm_ZZZZ_1m7yk2rabu8kc8hm6p6",
            "3gsm_zzzz_1m7yk2rabu8kc8hm6p6",
        ] {
            assert_eq!(bad.parse::<Generation>(), Err(NotAGeneration), "{bad}");
        }
        let dir = Path::new("/x");
        let place = SstablePath::new(dir, generation);
        for component in Component::ALL {
            let path = place.path(component);
            let name = path.file_name().and_then(|n| n.to_str()).expect("a file name");
            assert_eq!(SstablePath::parse_name(dir, name), Some((place.clone(), component)));
        }
    }

    #[test]
    fn names_of_unreadable_formats_are_recognized() {
        for name in
            ["oa-1-big-Data.db", "da-3gsm_17kx_1m7yk2rabu8kc8hm6p-bti-Rows.db", "ms-2-big-TOC.txt", "la-7-big-Index.db"]
        {
            let text = unreadable_format(name).unwrap_or_else(|| panic!("{name} is of a format"));
            assert!(text.starts_with(&name[..2]) && SstablePath::parse_name(Path::new("/x"), name).is_none());
        }
        for name in
            ["me-1-big-Data.db", "nb-1-big-SAI+ba+x.db", "oa-x-big-Data.db", "oa-1-Data.db", "manifest.json", ""]
        {
            assert_eq!(unreadable_format(name), None, "{name}");
        }
    }

    #[test]
    fn the_text_form_is_days_seconds_ticks_and_the_low_half() {
        let ticks = (2 * SECONDS_PER_DAY + 37) * TICKS_PER_SECOND + 36;
        let generation = Generation(Kind::Uuid(ticks, 35));
        assert_eq!(generation.to_string(), "0002_0011_00010000000000000z");
    }
}
