"""Writable roots on disk, for the bubblewrap runtime of a host's root user.

A root is an overlay: the files of an image below, and a btrfs subvolume for all that is written.

    store.py     one btrfs file system per process, in a file without a name: quotas, snapshots, and
                 what stands for a snapshot that stays on disk
    images.py    the files of an image, unpacked once per host
    kernel.py    the ioctls of btrfs, and mounts that only this process's thread for starting
                 sandboxes sees
    roots.py     puts these together

A snapshot of the subvolume costs the same however much it holds, and does not disturb the processes
that write to it, so the layers of forks are subvolumes rather than stacked overlays.

Nothing has to be cleaned up after a process that was killed: mounts end with their namespace, the
loop device with its last user, and the file without a name with the device.
"""
