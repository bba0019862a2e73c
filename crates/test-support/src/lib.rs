//! Code that the tests of several crates share. No crate of the server depends on it, except for
//! tests.

mod checksums;
mod counted;

pub use checksums::make_checksums_old;
pub use counted::Counted;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The stack of a thread of tests, in bytes. Futures of unoptimised builds are large.
const STACK: usize = 16 << 20;

static DIRECTORIES: AtomicUsize = AtomicUsize::new(0);

/// A directory of a test's own, removed at its end.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty directory among the system's temporary files.
    pub fn new(name: &str) -> Scratch {
        Scratch::within(&std::env::temp_dir(), name)
    }

    /// An empty directory in `/dev/shm`, if there is one: for tests that create many thousands of
    /// small files.
    pub fn in_memory(name: &str) -> Scratch {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Scratch::within(memory, name) } else { Scratch::new(name) }
    }

    fn within(parent: &Path, name: &str) -> Scratch {
        let number = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("messina-{name}-{}-{number}", std::process::id()));
        // A process with the same id may have been killed.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory for a test can be created");
        Scratch(path)
    }

    /// The same directory, empty.
    pub fn clear(&self) {
        std::fs::remove_dir_all(&self.0).expect("the directory of a test can be removed");
        std::fs::create_dir_all(&self.0).expect("the directory of a test can be created");
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Runs a test on a thread with a large stack, and panics if it panics.
#[allow(clippy::disallowed_methods, reason = "rt has no threads with a stack of a given size")]
pub fn on_large_stack<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, test);
        match thread.expect("a thread starts").join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
