//! The directories of streaming sessions: `streaming/<in|out>-<session>` in the directory of a
//! table, because hard links do not reach other file systems.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::table_dir::{STREAMING, is_absent, remove_tree};
use model::HostId;
use model::schema::TableSchema;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Whether a node sends or receives in a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// The node receives.
    In,
    /// The node is a source.
    Out,
}

impl Direction {
    const ALL: [Direction; 2] = [Direction::In, Direction::Out];

    fn prefix(self) -> &'static str {
        match self {
            Direction::In => "in-",
            Direction::Out => "out-",
        }
    }
}

/// The directory of a session.
fn of_session(table_dir: &Path, direction: Direction, session: Uuid) -> PathBuf {
    table_dir.join(STREAMING).join(format!("{}{}", direction.prefix(), session.simple()))
}

/// The directory of a session for sstables of one epoch of their table. If the table is truncated
/// while a tablet is streamed, the streaming begins again in another directory.
pub(super) fn path(table_dir: &Path, direction: Direction, session: Uuid, epoch: u64) -> PathBuf {
    of_session(table_dir, direction, session).join(format!("epoch-{epoch}"))
}

/// The directory of a session for the sstables of one source.
pub(super) fn from_source(table_dir: &Path, session: Uuid, epoch: u64, source: HostId) -> PathBuf {
    path(table_dir, Direction::In, session, epoch).join(source.0.simple().to_string())
}

/// The directory of a session for the sstables that this node writes from the mutations of one
/// source.
pub(super) fn of_mutations(table_dir: &Path, session: Uuid, epoch: u64, source: HostId) -> PathBuf {
    path(table_dir, Direction::In, session, epoch).join(format!("{}-mutations", source.0.simple()))
}

/// Creates a directory of a session durably, in the directory of its table.
pub(super) async fn make(table_dir: &Path, dir: &Path) -> Result<(), EngineError> {
    rt::fs::create_dir_all(dir).await.map_err(EngineError::io(dir))?;
    for parent in dir.ancestors().skip(1).take_while(|parent| parent.starts_with(table_dir)) {
        rt::fs::sync_dir(parent).await.map_err(EngineError::io(parent))?;
    }
    Ok(())
}

impl Engine {
    /// The sessions of a table that have directories. Other files are ignored.
    pub async fn session_dirs(&self, schema: &TableSchema) -> Result<Vec<(Direction, Uuid)>, EngineError> {
        let dir = self.table_dir(schema).join(STREAMING);
        // Most tables have none. This needs no file descriptor.
        if is_absent(&dir).await? {
            return Ok(Vec::new());
        }
        let entries = rt::fs::read_dir(&dir).await.map_err(EngineError::io(&dir))?;
        let session = |name: &str| {
            let of = |direction: Direction| Some((direction, name.strip_prefix(direction.prefix())?));
            let (direction, id) = Direction::ALL.into_iter().find_map(of)?;
            Some((direction, Uuid::try_parse(id).ok()?))
        };
        Ok(entries.iter().filter(|entry| entry.is_dir).filter_map(|entry| session(&entry.name)).collect())
    }

    /// Removes the files of a session of a table. Nothing may use them any more.
    pub async fn remove_session(&self, schema: &TableSchema, session: Uuid) -> Result<(), EngineError> {
        let dir = self.table_dir(schema);
        for direction in Direction::ALL {
            remove_tree(&of_session(&dir, direction, session)).await?;
        }
        Ok(())
    }

    /// Removes the files of all sessions of a table that are not open. Nothing may use them any
    /// more. Returns the number of removed directories.
    pub async fn sweep_sessions(
        &self,
        schema: &TableSchema,
        is_open: impl Fn(Uuid) -> bool,
    ) -> Result<usize, EngineError> {
        let mut removed = 0;
        for (_, session) in self.session_dirs(schema).await? {
            if !is_open(session) {
                self.remove_session(schema, session).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}
