/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A plugin for QEMU that counts the kernel's instructions by function, apart for each of some system calls: all that
 * runs from the entry of such a call to the return to user space, interrupts included, and whatever else runs while the
 * call sleeps. `lab.sh --profile` loads it. Counting starts when a program first asks for the highest priority of a
 * scheduling policy, which the guest's init does before it runs the command.
 *
 *   -plugin FILE,map=NAMES,out=FILE,calls=CALL+CALL...
 *
 * NAMES is as nm -n prints it. Writes lines `CALL FUNCTION INSTRUCTIONS ENTRIES`. The kernel must run where it was linked
 * to (no KASLR).
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Version 1 of QEMU's plugin interface, as much as is used here; distributions do not install its header. */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { qemu_plugin_cb_no_regs = 0 };
typedef void (*executed)(unsigned int cpu, void* data);
typedef void (*translated)(qemu_plugin_id_t id, struct qemu_plugin_tb* block);
typedef void (*ended)(qemu_plugin_id_t id, void* data);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translated callback);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn* insn, executed callback, int flags, void* data);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, ended callback, void* data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb* block, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn* insn);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;
__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void* info, int argc,
                                                               char** argv);

enum { most_calls = 8, longest_entry = 4096 };
static char call_names[most_calls][32];
static unsigned int calls;
static const uint64_t modules_start = 0xffffffffc0000000;
static const uint64_t kernel_start = (uint64_t)1 << 63;

struct function {
    uint64_t address;
    char name[64];
    uint64_t instructions[most_calls];
    uint64_t entries[most_calls];
};
static struct function* functions;
static size_t function_count;
static struct function* first_of[most_calls]; /* the functions that the calls begin with */
static struct function* start_of_counting;
static bool counting;
static const char* output;

/*
 * Which call it is shows only after the kernel's entry code has run, so that is put by. in_user also stands for a
 * system call that is none of ours: nothing is counted.
 */
static enum { in_user, in_entry, in_call } state;
static unsigned int current;
static struct function* entry_code[longest_entry];
static size_t entry_length;

static void user_ran(unsigned int cpu, void* data)
{
    (void)cpu, (void)data;
    state = in_entry;
    entry_length = 0;
}

static void kernel_ran(unsigned int cpu, void* data)
{
    struct function* in = data;

    (void)cpu;
    if (state == in_call)
        in->instructions[current]++;
    else if (state == in_entry && entry_length < longest_entry)
        entry_code[entry_length++] = in;
}

static void function_entered(unsigned int cpu, void* data)
{
    struct function* in = data;

    if (in == start_of_counting)
        counting = true;
    for (unsigned int call = 0; counting && state == in_entry && call < calls; call++) {
        if (in != first_of[call])
            continue;
        state = in_call;
        current = call;
        for (size_t i = 0; i < entry_length; i++)
            entry_code[i]->instructions[call]++;
    }
    if (state == in_call)
        in->entries[current]++;
    kernel_ran(cpu, data);
}

static struct function* function_at(uint64_t address)
{
    size_t low = 0, high = function_count;

    while (high - low > 1) {
        size_t middle = (low + high) / 2;

        if (functions[middle].address <= address)
            low = middle;
        else
            high = middle;
    }
    return &functions[low];
}

static void block_translated(qemu_plugin_id_t id, struct qemu_plugin_tb* block)
{
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn* insn = qemu_plugin_tb_get_insn(block, i);
        uint64_t address = qemu_plugin_insn_vaddr(insn);
        struct function* in = function_at(address);

        if (address >= kernel_start)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, address == in->address ? function_entered : kernel_ran,
                                                   qemu_plugin_cb_no_regs, in);
        else if (i == 0)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, user_ran, qemu_plugin_cb_no_regs, NULL);
    }
}

static void write_counts(qemu_plugin_id_t id, void* data)
{
    FILE* file = fopen(output, "w");

    (void)id, (void)data;
    if (!file) {
        perror(output);
        return;
    }
    for (unsigned int call = 0; call < calls; call++)
        for (struct function* in = functions; in != functions + function_count; in++)
            if (in->instructions[call])
                fprintf(file, "%s %s %llu %llu\n", call_names[call], in->name,
                        (unsigned long long)in->instructions[call], (unsigned long long)in->entries[call]);
    fclose(file);
}

static bool append(uint64_t address, const char* name)
{
    static size_t room;

    if (function_count == room) {
        struct function* larger = realloc(functions, (room += 32768) * sizeof(*functions));

        if (!larger)
            return false;
        functions = larger;
    }
    functions[function_count] = (struct function){.address = address};
    snprintf(functions[function_count++].name, sizeof(functions->name), "%.63s", name);
    return true;
}

/* Symbols in the order of their addresses; of several at one address the first counts. */
static bool read_map(const char* path)
{
    FILE* file = fopen(path, "r");
    unsigned long long address;
    char type, name[512];
    bool good = file != NULL;

    while (good && fscanf(file, "%llx %c %511s", &address, &type, name) == 3) {
        bool again = function_count && functions[function_count - 1].address == address;

        if (strchr("tTwW", type) && address >= kernel_start && !again)
            good = append(address, name);
    }
    if (file)
        fclose(file);
    return good && function_count && append(modules_start, "[modules]");
}

static struct function* find_call(const char* name)
{
    char entry[64];

    snprintf(entry, sizeof(entry), "__x64_sys_%s", name);
    for (size_t i = 0; i < function_count; i++)
        if (strcmp(functions[i].name, entry) == 0)
            return &functions[i];
    fprintf(stderr, "profile: this kernel has no system call '%s'\n", name);
    return NULL;
}

/* names: CALL+CALL... */
static bool find_calls(char* names)
{
    for (char* name = strtok(names, "+"); name; name = strtok(NULL, "+")) {
        if (calls == most_calls) {
            fprintf(stderr, "profile: at most %d system calls\n", most_calls);
            return false;
        }
        snprintf(call_names[calls], sizeof(call_names[calls]), "%s", name);
        first_of[calls] = find_call(name);
        if (!first_of[calls++])
            return false;
    }
    start_of_counting = find_call("sched_get_priority_max");
    return calls > 0 && start_of_counting;
}

int qemu_plugin_install(qemu_plugin_id_t id, const void* info, int argc, char** argv)
{
    const char* map = NULL;
    char* names = NULL;

    (void)info;
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "map=", 4) == 0)
            map = argv[i] + 4;
        else if (strncmp(argv[i], "out=", 4) == 0)
            output = strdup(argv[i] + 4);
        else if (strncmp(argv[i], "calls=", 6) == 0)
            names = argv[i] + 6;
    }
    if (!map || !output || !names || !read_map(map)) {
        fprintf(stderr, "profile: map=NAMES,out=FILE,calls=CALL+CALL...: no functions read\n");
        return -1;
    }
    if (!find_calls(names))
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, block_translated);
    qemu_plugin_register_atexit_cb(id, write_counts, NULL);
    return 0;
}
