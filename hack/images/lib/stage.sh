# shellcheck shell=bash
# What an image is built from: the build context of a program whose binary is there already.

programs='operator server proxy agent'

# Prints a hash of all that decides what the image of a program is.
inputs_hash() { # PROGRAM BASE-IMAGE
  {
    cat "$bin_dir/$1" "$root/Containerfile.$1" "$root/LICENSE"
    printf '%s %s' "$2" "$version"
  } | sha256sum | cut -c -32
}

# Fills the folder with the build context of a program.
stage_context() { # PROGRAM FOLDER
  # A program that was built with symbols is several times the size of one without.
  if command -v strip >/dev/null; then strip --strip-all -o "$2/$1" "$bin_dir/$1"; else cp "$bin_dir/$1" "$2/$1"; fi
  cp "$root/LICENSE" "$2/LICENSE"
}

# Prints, a line each, the arguments with which a Containerfile takes the binary from the context.
prebuilt_arguments() { # PROGRAM BASE-IMAGE
  printf '%s\n' --file "$root/Containerfile.$1" --build-arg BINARY_FROM=prebuilt --build-arg "BINARY=$1" --build-arg "VERSION=$version"
  if [ -n "$2" ]; then printf '%s\n' --build-arg "BASE_IMAGE=$2"; fi
}
