//! The folder that keeps the full text of outputs too long for a reply: bounded, and safe from what a command puts there.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::dir::{Dir, Entry};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Files kept at most.
const MAX_FILES: usize = 64;
/// Bytes kept of one output.
pub const MAX_FILE_BYTES: u64 = 16 << 20;
/// Bytes kept of all outputs together.
const MAX_TOTAL_BYTES: u64 = 64 << 20;
/// Where the files are, below the workspace.
const FOLDERS: [&str; 2] = [".cli-mcp", "output"];
/// What every file of ours is called: `<sequence>-<stream>.txt`, so that names sort by age.
const SUFFIX: &str = ".txt";

/// Entries of the folder that are looked at. A command can make any number, and each look holds up the agent's one thread.
const MAX_ENTRIES: usize = 4 * MAX_FILES;
/// Files that are deleted for one call, however fast a command makes others.
const MAX_DELETIONS: usize = MAX_ENTRIES;

/// Why an output is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum NotKept {
    /// A system call failed.
    #[error("{}", .0.desc())]
    System(#[from] Errno),
    /// There is more in the folder than is looked at.
    #[error("{} has more than {MAX_ENTRIES} entries; delete some", FOLDERS.join("/"))]
    Overfull,
}

/// Where full outputs of one call go.
#[derive(Clone, Debug)]
pub struct SpillFolder {
    workspace: PathBuf,
    call: Arc<Mutex<OfCall>>,
}

/// What the outputs of one call share.
#[derive(Debug)]
struct OfCall {
    /// The names of its own files: they may still grow, and none makes room for another.
    own: Vec<String>,
    /// Files that may yet be deleted for it.
    deletions: usize,
}

impl Default for OfCall {
    fn default() -> Self {
        Self {
            own: Vec::new(),
            deletions: MAX_DELETIONS,
        }
    }
}

/// One output on its way to disk.
#[derive(Debug)]
pub struct Spill {
    to: Result<Destination, NotKept>,
    kept: u64,
    cut: bool,
}

#[derive(Debug)]
struct Destination {
    file: File,
    folder: OwnedFd,
    name: String,
    path: PathBuf,
    call: Arc<Mutex<OfCall>>,
}

/// A regular file of the folder that is called like ours: in their order, the oldest comes first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    sequence: u64,
    name: String,
    bytes: u64,
}

impl SpillFolder {
    /// A folder below `workspace`; nothing is made until an output needs it.
    #[must_use]
    pub fn new(workspace: &Path) -> Self {
        Self {
            workspace: workspace.to_owned(),
            call: Arc::default(),
        }
    }

    /// Opens the file for one output, after the oldest made room for it. A failure is kept and told in the reply.
    #[must_use]
    pub fn create(&self, stream: &str) -> Spill {
        Spill {
            to: self.try_create(stream),
            kept: 0,
            cut: false,
        }
    }

    fn try_create(&self, stream: &str) -> Result<Destination, NotKept> {
        let folder = self.open_folder()?;
        let (next, files) = list(&folder)?;
        let mut call = self.call.lock().unwrap_or_else(PoisonError::into_inner);
        for file in surplus(&files, &call.own) {
            call.delete(&folder, &file.name)?;
        }
        let name = format!("{next:08}-{stream}{SUFFIX}");
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = loop {
            match openat(&folder, name.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR) {
                Err(errno) if is_full(errno) => call.delete_oldest(&folder, errno)?,
                opened => break opened?,
            }
        };
        call.own.push(name.clone());
        let mut path = self.workspace.clone();
        path.extend(FOLDERS);
        path.push(&name);
        Ok(Destination {
            file: File::from(file),
            folder,
            name,
            path,
            call: Arc::clone(&self.call),
        })
    }

    /// Walks to the folder by descriptors that follow no link: a link that a command put there leads nowhere (case 105).
    fn open_folder(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut folder = open(&self.workspace, flags, Mode::empty())?;
        for name in FOLDERS {
            match mkdirat(&folder, name, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
            folder = openat(&folder, name, flags | OFlag::O_NOFOLLOW, Mode::empty())?;
        }
        Ok(folder)
    }
}

/// The next sequence number, which nothing in the folder has, and the files that can make room.
fn list(folder: &OwnedFd) -> Result<(u64, Vec<Kept>), NotKept> {
    let mut listing = Dir::openat(
        folder,
        ".",
        OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    let mut next = 1;
    let mut files = Vec::new();
    for entry in no_more_than(MAX_ENTRIES, listing.iter().filter_map(Result::ok).filter(is_content))? {
        let Some((sequence, name)) = numbered(entry.file_name()) else {
            continue;
        };
        next = next.max(sequence.saturating_add(1));
        if let Ok(stat) = fstatat(folder, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
            && SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
        {
            let bytes = u64::try_from(stat.st_size).unwrap_or(0);
            files.push(Kept { sequence, name, bytes });
        }
    }
    files.sort_unstable();
    Ok((next, files))
}

/// Whether an entry is none of the two that every folder has.
fn is_content(entry: &Entry) -> bool {
    ![c".", c".."].contains(&entry.file_name())
}

/// All entries of a folder, or none where there are more than so many: then no more is read than tells.
fn no_more_than<T>(most: usize, entries: impl Iterator<Item = T>) -> Result<Vec<T>, NotKept> {
    let read: Vec<T> = entries.take(most + 1).collect();
    if read.len() > most {
        return Err(NotKept::Overfull);
    }
    Ok(read)
}

/// The sequence number in a name like ours, and the name.
fn numbered(name: &CStr) -> Option<(u64, String)> {
    let name = name.to_str().ok()?;
    let sequence = name.strip_suffix(SUFFIX)?.split_once('-')?.0.parse().ok()?;
    Some((sequence, name.to_owned()))
}

/// The oldest files, as many as must go so that one more fits when it and the call's own have grown to their bound.
fn surplus<'a>(files: &'a [Kept], own: &[String]) -> Vec<&'a Kept> {
    let (growing, mut grown): (Vec<&Kept>, Vec<&Kept>) = files.iter().partition(|file| own.contains(&file.name));
    let growing = growing.len() + 1;
    let mut total = growing as u64 * MAX_FILE_BYTES;
    let room = MAX_FILES.saturating_sub(growing);
    let newest_first = grown.iter().rev().take(room);
    let stay = newest_first
        .take_while(|file| {
            // A command's sparse file can be as large as a number.
            total = total.saturating_add(file.bytes);
            total <= MAX_TOTAL_BYTES
        })
        .count();
    grown.truncate(grown.len() - stay);
    grown
}

/// Deletes a file. One that a command has deleted meanwhile is as good.
fn delete(folder: &OwnedFd, name: &str) -> Result<(), Errno> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        deleted => deleted,
    }
}

impl OfCall {
    /// Deletes a file, if that is not one too many for this call.
    fn delete(&mut self, folder: &OwnedFd, name: &str) -> Result<(), NotKept> {
        self.deletions = self.deletions.checked_sub(1).ok_or(NotKept::Overfull)?;
        Ok(delete(folder, name)?)
    }

    /// Deletes the oldest file that is not the call's own, to make room after the failure `full`; fails with that where none
    /// can be deleted any more.
    fn delete_oldest(&mut self, folder: &OwnedFd, full: Errno) -> Result<(), NotKept> {
        let (_, files) = list(folder)?;
        let oldest = files.iter().find(|file| !self.own.contains(&file.name)).ok_or(full)?;
        self.delete(folder, &oldest.name).map_err(|_| full.into())
    }
}

/// Whether a failure is one that goes away where there is room.
fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT)
}

impl Destination {
    /// Appends. Where the disk is full, the oldest files make room.
    fn append(&mut self, mut bytes: &[u8]) -> Result<(), NotKept> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(Errno::EIO.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) => match errno_of(&error) {
                    Errno::EINTR => {}
                    full if is_full(full) => {
                        let mut call = self.call.lock().unwrap_or_else(PoisonError::into_inner);
                        call.delete_oldest(&self.folder, full)?;
                    }
                    errno => return Err(errno.into()),
                },
            }
        }
        Ok(())
    }

    /// Leaves nothing on the disk, whatever the file may be called by now.
    fn discard(&self) {
        let _ = self.file.set_len(0);
        let _ = delete(&self.folder, &self.name);
    }
}

impl Spill {
    /// Appends, up to the bound of one file; the first failure ends it, and leaves no part of it.
    pub fn write(&mut self, bytes: &[u8]) {
        let Ok(destination) = &mut self.to else { return };
        let room = usize::try_from(MAX_FILE_BYTES - self.kept).unwrap_or(usize::MAX);
        let part = &bytes[..bytes.len().min(room)];
        self.cut |= part.len() < bytes.len();
        match destination.append(part) {
            Ok(()) => self.kept += part.len() as u64,
            Err(reason) => {
                destination.discard();
                self.to = Err(reason);
            }
        }
    }

    /// The words of the reply's line that say where the full text is.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.to {
            Ok(to) if self.cut => format!("the first {} bytes are in {}", self.kept, to.path.display()),
            Ok(to) => format!("the full text is in {}", to.path.display()),
            Err(reason) => format!("the full text could not be kept: {reason}"),
        }
    }
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests;
