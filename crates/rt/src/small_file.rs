//! Bounded reads of small files that an operator names: the configuration, certificates, keys.
//!
//! The named file may not be a regular, small file. It may be a FIFO, whose open blocks until there
//! is a writer. It may be a device, or a sparse file of gigabytes. For each of these, [`read`]
//! returns an error. It neither blocks nor reads more than the limit.

use crate::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tokio::sync::oneshot;

/// Which files a read accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accept {
    /// Only regular files. Opening never blocks.
    Regular,
    /// Also pipes and devices, for `--config <(...)`. Waits for the writer.
    Pipes,
}

/// The contents of a file of at most `limit` bytes.
pub fn read(path: &Path, limit: u64, accept: Accept) -> io::Result<Vec<u8>> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true);
    if accept == Accept::Regular {
        // The type is checked first, because the open of some devices has effects.
        fs::regular::check(path)?;
        // Without this flag, the open of a FIFO waits for a writer.
        options.custom_flags(libc::O_NONBLOCK);
    }
    let file = options.open(path)?;
    let found = file.metadata()?;
    if accept == Accept::Regular && !found.is_dir() {
        fs::regular::check_found(&found)?;
    }
    let too_large = || {
        let why = format!("larger than {} KiB, the limit for such a file", limit >> 10);
        io::Error::new(io::ErrorKind::FileTooLarge, why)
    };
    if found.is_file() && found.len() > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_large()) } else { Ok(bytes) }
}

/// Runs `f` on a thread of its own and waits for it without blocking the caller's thread. If `f`
/// blocks for good, the end of the process does not wait for it.
pub async fn on_own_thread<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (send, receive) = oneshot::channel();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || drop(send.send(f())))?;
    receive.await.map_err(|_| io::Error::other(format!("the thread {name} panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_small_regular_files_are_read() {
        let dir = test_support::Scratch::new("small-file");
        let (small, large, fifo) = (dir.join("small"), dir.join("large"), dir.join("fifo"));
        std::fs::write(&small, "1234").expect("written");
        assert_eq!(read(&small, 4, Accept::Regular).expect("read"), b"1234");
        let sparse = std::fs::File::create(&large).expect("created");
        sparse.set_len(6 << 30).expect("sparse");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("runs");
        assert!(made.success());
        for (path, limit, why) in [
            (&small, 3, "larger than 0 KiB"),
            (&large, 1 << 20, "larger than 1024 KiB, the limit for such a file"),
            (&fifo, 9, "not a regular file, but a FIFO"),
            (&dir.join("missing"), 9, "No such file"),
            (&dir.join(""), 9, "directory"),
        ] {
            let error = read(path, limit, Accept::Regular).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
        let zero = read(Path::new("/dev/zero"), 1 << 20, Accept::Pipes).expect_err("endless");
        assert_eq!(zero.kind(), io::ErrorKind::FileTooLarge);
        let error = read(Path::new("/dev/zero"), 1 << 20, Accept::Regular).expect_err("a device").to_string();
        assert_eq!(error, "not a regular file, but a device");
    }

    #[test]
    fn the_caller_works_while_its_own_thread_blocks() {
        crate::block_on(async {
            let (answer, question) = std::sync::mpsc::channel();
            let other = crate::task::spawn(async move { answer.send(7).expect("the thread waits") });
            assert_eq!(on_own_thread("waits", move || question.recv()).await.expect("runs"), Ok(7));
            other.await.expect("it ran");
            assert!(on_own_thread::<()>("panics", || panic!("on purpose")).await.is_err());
        });
    }
}
