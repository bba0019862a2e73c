//! Descriptors that an accept loop keeps in reserve, so that its port answers when the process has
//! no descriptors left.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// An error if the process has no descriptor left.
pub fn check_descriptor_left() -> io::Result<()> {
    io::stderr().as_fd().try_clone_to_owned().map(drop)
}

/// Descriptors in reserve. Each is a copy of standard error, which every process has.
#[derive(Debug)]
pub struct SpareDescriptors {
    held: Vec<OwnedFd>,
    wanted: usize,
}

impl SpareDescriptors {
    /// Takes `wanted` descriptors, or as many as the process has left.
    pub fn new(wanted: usize) -> SpareDescriptors {
        let mut spare = SpareDescriptors { held: Vec::new(), wanted };
        spare.fill();
        spare
    }

    /// Takes the descriptors that are missing, as far as the process has some left.
    pub fn fill(&mut self) {
        while self.held.len() < self.wanted {
            match io::stderr().as_fd().try_clone_to_owned() {
                Ok(descriptor) => self.held.push(descriptor),
                Err(_) => return,
            }
        }
    }

    /// Gives up one descriptor after an accept that failed. Returns whether the next accept may
    /// succeed because of this.
    pub fn release_after(&mut self, error: &io::Error) -> bool {
        let is_out = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        is_out && self.held.pop().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_given_up_one_by_one_and_taken_again() {
        let mut spare = SpareDescriptors::new(2);
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        assert!(!spare.release_after(&io::Error::from_raw_os_error(libc::ECONNABORTED)));
        assert_eq!([0; 3].map(|_| spare.release_after(&error)), [true, true, false]);
        spare.fill();
        assert_eq!(spare.held.len(), 2);
    }
}
