// SPDX-License-Identifier: Apache-2.0
//
// load FILE: copies a file into memory, as programs do that have let another one download it: mapped, and copied once.
// The memory is of the kind that gpurx::ingest::buffer::on_host gives.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(char const* what)
{
    perror(what);
    return 1;
}

int main(int argc, char** argv)
{
    if (argc != 2)
        return 2;
    int const file = open(argv[1], O_RDONLY);
    struct stat found;
    if (file < 0 || fstat(file, &found) != 0)
        return fail(argv[1]);
    size_t const size = (size_t)found.st_size;
    void* const from = mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    void* const to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (from == MAP_FAILED || to == MAP_FAILED)
        return fail("mmap");
    (void)madvise(to, size, MADV_HUGEPAGE);
    memcpy(to, from, size);
    return ((unsigned char volatile*)to)[size - 1] == ((unsigned char volatile*)from)[size - 1] ? 0 : 1;
}
