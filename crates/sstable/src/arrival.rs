//! An sstable whose files arrive from another node. Every byte is checked before the sstable is
//! used: against Checksums.db, and Data.db against Digest.crc32.
//!
//! The files arrive in the order of [`arrival_order`], so that the expected checksums are there
//! before the files that they protect. [`Arrival::begin`] gives the check of each file, which is
//! computed while the bytes arrive.

use crate::checksums::{Checksums, PAGE, PieceSums};
use crate::error::Error;
use crate::generation::{Component, SstablePath};
use crate::input::Fault;
use crate::table::Sstable;

/// The order in which the components of an sstable are sent.
pub fn arrival_order(component: Component) -> usize {
    const FIRST: [Component; 3] = [Component::Toc, Component::Checksums, Component::Digest];
    let first = FIRST.iter().position(|own| *own == component);
    first.unwrap_or_else(|| FIRST.len() + Component::ALL.iter().position(|own| *own == component).unwrap_or(0))
}

impl Sstable {
    /// The components with their lengths in bytes, in the order of [`arrival_order`].
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if checksums do not protect every component: another database wrote
    /// the sstable.
    pub async fn files_to_send(&self) -> Result<Vec<(Component, u64)>, Error> {
        if !self.is_protected() {
            return Err(Error::Unsupported(format!("{}: it has no Checksums.db", self.data.path().display())));
        }
        let mut files = Vec::with_capacity(self.components().len());
        for name in self.components() {
            let unknown = || Error::Unsupported(format!("{}: it has the component {name}", self.data.path().display()));
            let component = Component::named(name).ok_or_else(unknown)?;
            let path = self.place().path(component);
            let length = match component {
                Component::Data => self.data_length,
                Component::Index => self.index_length,
                _ => rt::fs::metadata(&path).await.map_err(Error::io(&path))?.len,
            };
            files.push((component, length));
        }
        files.sort_by_key(|(component, _)| arrival_order(*component));
        Ok(files)
    }
}

/// The expected checksums of an arriving sstable; see the module.
#[derive(Debug)]
pub struct Arrival {
    /// Its place in the directory in which it arrives.
    place: SstablePath,
    /// The table of contents, which arrives before its checksum.
    toc: Option<Vec<u8>>,
    checksums: Option<Checksums>,
    digest: Option<u32>,
}

/// The check of one arriving file.
#[derive(Debug)]
pub struct FileCheck {
    component: Component,
    length: u64,
    arrived: u64,
    sums: Sums,
}

#[derive(Debug)]
enum Sums {
    /// The file is kept until it is complete: it has checksums of other files, or none yet.
    Kept(Vec<u8>),
    Whole {
        hasher: crc32fast::Hasher,
        expected: u32,
    },
    Pages {
        sums: PieceSums,
        expected: Vec<u32>,
    },
}

/// The maximum length of a file that is kept in memory, in bytes. Checksums.db has four bytes for
/// each page of Index.db.
const MOST_KEPT: u64 = 256 << 20;

impl Arrival {
    /// No file has arrived yet.
    pub fn new(place: SstablePath) -> Arrival {
        Arrival { place, toc: None, checksums: None, digest: None }
    }

    fn damaged(&self, component: Component, why: impl Into<String>) -> Error {
        Error::corrupt(&self.place.path(component), 0, why)
    }

    /// The check of the next file. Fails if its length is not the one in Checksums.db.
    pub fn begin(&self, component: Component, length: u64) -> Result<FileCheck, Error> {
        let is_kept = matches!(component, Component::Toc | Component::Checksums | Component::Digest);
        let expected = match (&self.checksums, component) {
            (None, Component::Toc | Component::Checksums) => None,
            (None, _) => return Err(self.damaged(component, "it arrives before Checksums.db")),
            (Some(checksums), Component::Data) => Some(checksums.data_length),
            (Some(checksums), Component::Index) => Some(checksums.index_length),
            (Some(checksums), _) => checksums.length(component),
        };
        match expected {
            Some(expected) if expected != length => {
                return Err(self.damaged(component, format!("the file should have {expected} bytes, not {length}")));
            }
            None if self.checksums.is_some() => return Err(self.damaged(component, "Checksums.db does not list it")),
            _ if is_kept && length > MOST_KEPT => return Err(self.damaged(component, "it is too long")),
            _ => {}
        }
        let sums = match (&self.checksums, component) {
            _ if is_kept => Sums::Kept(Vec::with_capacity(length as usize)),
            (Some(checksums), Component::Index) => {
                Sums::Pages { sums: PieceSums::new(PAGE), expected: checksums.index_pages.clone() }
            }
            (_, Component::Data) => {
                let expected = self.digest.ok_or_else(|| self.damaged(component, "it arrives before Digest.crc32"))?;
                Sums::Whole { hasher: crc32fast::Hasher::new(), expected }
            }
            (checksums, _) => {
                let expected = checksums.as_ref().and_then(|checksums| checksums.sum(component)).unwrap_or_default();
                Sums::Whole { hasher: crc32fast::Hasher::new(), expected }
            }
        };
        Ok(FileCheck { component, length, arrived: 0, sums })
    }

    /// Ends the check of a file.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the bytes are not the expected ones.
    pub fn end(&mut self, check: FileCheck) -> Result<(), Error> {
        let FileCheck { component, length, arrived, sums } = check;
        if arrived != length {
            return Err(self.damaged(component, format!("{arrived} of its {length} bytes have arrived")));
        }
        let is_right = match sums {
            Sums::Kept(bytes) => return self.keep(component, bytes),
            Sums::Whole { hasher, expected } => hasher.finalize() == expected,
            Sums::Pages { sums, expected } => sums.finish() == expected,
        };
        if is_right { Ok(()) } else { Err(self.damaged(component, "its bytes do not have the checksum of the source")) }
    }

    fn keep(&mut self, component: Component, bytes: Vec<u8>) -> Result<(), Error> {
        let path = self.place.path(component);
        let at = |fault: Fault| fault.at(&path, 0);
        match component {
            Component::Toc => self.toc = Some(bytes),
            Component::Checksums => {
                let checksums = Checksums::read(&bytes).map_err(at)?;
                let toc = self.toc.take().ok_or_else(|| self.damaged(component, "it arrives before TOC.txt"))?;
                let toc_path = self.place.path(Component::Toc);
                checksums.check(Component::Toc, &toc).map_err(|fault| fault.at(&toc_path, 0))?;
                self.checksums = Some(checksums);
            }
            _ => {
                if let Some(checksums) = &self.checksums {
                    checksums.check(component, &bytes).map_err(at)?;
                }
                let text = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
                self.digest = Some(text.ok_or_else(|| self.damaged(component, "the content is not a checksum"))?);
            }
        }
        Ok(())
    }
}

impl FileCheck {
    /// Adds the next bytes of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        self.arrived += bytes.len() as u64;
        match &mut self.sums {
            Sums::Kept(kept) => kept.extend_from_slice(bytes),
            Sums::Whole { hasher, .. } => hasher.update(bytes),
            Sums::Pages { sums, .. } => sums.update(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The files of a small sstable, in the order of arrival.
    fn files() -> Vec<(Component, Vec<u8>)> {
        let (data, index, toc) = (vec![1u8; 10_000], vec![2u8; 2 * PAGE + 7], b"Data.db\nTOC.txt\n".to_vec());
        let (digest, filter) = (crc32fast::hash(&data).to_string().into_bytes(), vec![3u8; 100]);
        let mut checksums = Checksums {
            data_length: data.len() as u64,
            index_length: index.len() as u64,
            index_pages: index.chunks(PAGE).map(crc32fast::hash).collect(),
            files: Vec::new(),
            data: None,
        };
        for (component, bytes) in [(Component::Toc, &toc), (Component::Digest, &digest), (Component::Filter, &filter)] {
            checksums.set(component, bytes);
        }
        let mut files = vec![
            (Component::Data, data),
            (Component::Index, index),
            (Component::Filter, filter),
            (Component::Digest, digest),
            (Component::Checksums, checksums.write()),
            (Component::Toc, toc),
        ];
        files.sort_by_key(|(component, _)| arrival_order(*component));
        files
    }

    fn arrive(files: &[(Component, Vec<u8>)]) -> Result<(), Error> {
        let mut arrival = Arrival::new(SstablePath::new(Path::new("/x"), "1".parse().expect("a generation")));
        for (component, bytes) in files {
            let mut check = arrival.begin(*component, bytes.len() as u64)?;
            bytes.chunks(999).for_each(|piece| check.update(piece));
            arrival.end(check)?;
        }
        Ok(())
    }

    #[test]
    fn protecting_components_come_first() {
        let order: Vec<Component> = files().into_iter().map(|(component, _)| component).collect();
        let first = [Component::Toc, Component::Checksums, Component::Digest];
        assert_eq!(order[..3], first);
        assert!(arrive(&files()).is_ok());
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let files = files();
        for (at, (component, bytes)) in files.iter().enumerate() {
            let places = (0..bytes.len()).step_by(if bytes.len() > 1000 { 997 } else { 1 });
            for place in places.chain([bytes.len() - 1]) {
                let mut damaged = files.clone();
                damaged[at].1[place] ^= 0x10;
                assert!(arrive(&damaged).is_err(), "byte {place} of {component:?}");
            }
            let mut short = files.clone();
            short[at].1.pop();
            assert!(arrive(&short).is_err(), "the last byte of {component:?} is missing");
        }
    }

    #[test]
    fn files_in_another_order_or_unknown_ones_are_refused() {
        let mut files = files();
        files.swap(0, 1);
        assert!(arrive(&files).is_err());
        files.swap(0, 1);
        files.push((Component::Summary, vec![1]));
        assert!(arrive(&files).is_err(), "Checksums.db does not list it");
    }
}
