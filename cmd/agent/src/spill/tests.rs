use super::*;

fn files(workspace: &Path) -> Vec<u64> {
    std::fs::read_dir(workspace.join(".cli-mcp/output"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect()
}

#[test]
fn files_and_bytes_are_bounded_and_the_oldest_goes_first() {
    let workspace = tempfile::tempdir().unwrap();
    for _ in 0..200 {
        SpillFolder::new(workspace.path())
            .create("stdout")
            .write(&vec![b'x'; 1 << 20]);
    }
    let sizes = files(workspace.path());
    assert!(
        sizes.len() <= MAX_FILES && sizes.iter().sum::<u64>() <= MAX_TOTAL_BYTES,
        "{sizes:?}"
    );
    assert!(workspace.path().join(".cli-mcp/output/00000200-stdout.txt").exists());
    assert!(!workspace.path().join(".cli-mcp/output/00000001-stdout.txt").exists());
}

#[test]
fn no_more_entries_are_looked_at_than_tell_that_there_are_too_many() {
    let mut looked_at = 0;
    let read = no_more_than(3, (0..1000).inspect(|_| looked_at += 1));
    assert_eq!((read, looked_at), (Err(NotKept::Overfull), 4));
    assert_eq!(no_more_than(3, 0..3), Ok(vec![0, 1, 2]));
}

#[test]
fn an_overfull_folder_is_left_alone_and_named() {
    let workspace = tempfile::tempdir().unwrap();
    let keep = |bytes: &[u8]| {
        let mut spill = SpillFolder::new(workspace.path()).create("stdout");
        spill.write(bytes);
        spill.describe()
    };
    keep(b"x");
    let at = |number: usize| workspace.path().join(format!(".cli-mcp/output/{number}-x.txt"));
    for number in 0..MAX_ENTRIES {
        std::fs::write(at(number), "").unwrap();
    }
    assert_eq!(
        keep(b"y"),
        "the full text could not be kept: .cli-mcp/output has more than 256 entries; delete some"
    );
    assert_eq!(files(workspace.path()).len(), MAX_ENTRIES + 1);
    std::fs::remove_file(at(0)).unwrap();
    assert!(keep(b"z").starts_with("the full text is in "));
    assert_eq!(files(workspace.path()).len(), MAX_FILES);
}

#[test]
fn no_more_files_than_so_many_make_room_for_one_call() {
    let workspace = tempfile::tempdir().unwrap();
    let folder = SpillFolder::new(workspace.path()).open_folder().unwrap();
    for number in 0..5 {
        std::fs::write(workspace.path().join(format!(".cli-mcp/output/{number}-x.txt")), "").unwrap();
    }
    let mut call = OfCall {
        own: vec!["0-x.txt".to_owned()],
        deletions: 2,
    };
    let results = [(); 3].map(|()| call.delete_oldest(&folder, Errno::ENOSPC));
    assert_eq!(results, [Ok(()), Ok(()), Err(NotKept::System(Errno::ENOSPC))]);
    assert_eq!(files(workspace.path()).len(), 3);
    let mut only_own = OfCall {
        own: (0..5).map(|number| format!("{number}-x.txt")).collect(),
        ..OfCall::default()
    };
    assert_eq!(
        only_own.delete_oldest(&folder, Errno::ENOSPC),
        Err(NotKept::System(Errno::ENOSPC))
    );
}

#[test]
fn files_of_any_size_are_reckoned_with() {
    let kept = |sequence: u64, bytes: u64| Kept {
        sequence,
        name: format!("{sequence}-x.txt"),
        bytes,
    };
    let files = [kept(1, 1), kept(2, u64::MAX / 2), kept(3, u64::MAX / 2 + 2), kept(4, 1)];
    assert_eq!(surplus(&files, &[]), files[..3].iter().collect::<Vec<_>>());
}

#[test]
fn two_files_that_grow_together_stay_within_the_bound() {
    let workspace = tempfile::tempdir().unwrap();
    let almost_full = MAX_FILE_BYTES - (1 << 20);
    for _ in 0..3 {
        let spill = SpillFolder::new(workspace.path()).create("stdout");
        spill.to.unwrap().file.set_len(almost_full).unwrap();
    }
    let folder = SpillFolder::new(workspace.path());
    let mut spills = ["stdout", "stderr"].map(|stream| folder.create(stream));
    for spill in &mut spills {
        spill.write(&vec![b'x'; 1 << 24]);
        assert!(spill.describe().starts_with("the full text is in "));
    }
    let mut sizes = files(workspace.path());
    sizes.sort_unstable();
    assert_eq!(sizes, [almost_full, almost_full, MAX_FILE_BYTES, MAX_FILE_BYTES]);
}

#[test]
fn what_is_no_regular_file_makes_no_room_and_is_in_no_way() {
    let workspace = tempfile::tempdir().unwrap();
    let target = workspace.path().join("target");
    std::fs::write(&target, "kept").unwrap();
    SpillFolder::new(workspace.path()).create("stdout").write(b"x");
    let at = |name: &str| workspace.path().join(".cli-mcp/output").join(name);
    std::fs::create_dir(at("00000002-stdout.txt")).unwrap();
    std::os::unix::fs::symlink(&target, at("00000003-stdout.txt")).unwrap();
    std::fs::create_dir(at("00000090-stdout.txt")).unwrap();
    for _ in 0..2 * MAX_FILES {
        let mut spill = SpillFolder::new(workspace.path()).create("stdout");
        spill.write(b"x");
        assert!(
            spill.describe().starts_with("the full text is in "),
            "{}",
            spill.describe()
        );
    }
    assert_eq!(files(workspace.path()).len(), MAX_FILES + 3);
    assert!(at("00000003-stdout.txt").is_symlink() && target.exists());
}

#[test]
fn one_file_is_bounded_and_says_so() {
    let workspace = tempfile::tempdir().unwrap();
    let mut spill = SpillFolder::new(workspace.path()).create("stderr");
    for _ in 0..17 {
        spill.write(&vec![b'x'; 1 << 20]);
    }
    assert_eq!(files(workspace.path()), [MAX_FILE_BYTES]);
    assert!(
        spill.describe().starts_with("the first 16777216 bytes are in "),
        "{}",
        spill.describe()
    );
}

#[test]
fn a_link_in_place_of_the_folder_is_not_followed() {
    let workspace = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    for depth in 0..2 {
        let link = if depth == 0 { ".cli-mcp" } else { ".cli-mcp/output" };
        if depth == 1 {
            std::fs::remove_file(workspace.path().join(".cli-mcp")).unwrap();
            std::fs::create_dir(workspace.path().join(".cli-mcp")).unwrap();
        }
        std::os::unix::fs::symlink(elsewhere.path(), workspace.path().join(link)).unwrap();
        let mut spill = SpillFolder::new(workspace.path()).create("stdout");
        spill.write(b"x");
        assert!(spill.describe().contains("could not be kept"), "{}", spill.describe());
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}
