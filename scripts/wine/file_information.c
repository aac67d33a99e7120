/* A GetFileInformationByHandle for CPython that asks Wine for the serial number of a drive only once.

   CPython calls it in each os.stat and open. Wine 8 asks its mount manager for the serial number each time, which is
   another process, and that takes most of the call's time. The rest of the answer comes from the same queries. */
#include "file_information.h"
#include <winternl.h>

enum { FILE_BASIC = 4, FILE_STANDARD = 5, FILE_INTERNAL = 6, OBJECT_NAME = 1, DRIVES = 26 };

/* FILE_BASIC_INFORMATION and FILE_STANDARD_INFORMATION, which mingw-w64 has in headers for drivers only. */
typedef struct {
    LARGE_INTEGER created, accessed, written, changed;
    ULONG attributes;
} basic_t;
typedef struct {
    LARGE_INTEGER allocated, size;
    ULONG links;
    BOOLEAN deleting, directory;
} standard_t;

static BOOL(WINAPI *ask_wine)(HANDLE, BY_HANDLE_FILE_INFORMATION *);
static NTSTATUS(NTAPI *query_file)(HANDLE, IO_STATUS_BLOCK *, void *, ULONG, int);
static NTSTATUS(NTAPI *query_object)(HANDLE, int, void *, ULONG, ULONG *);

/* The drive of an open file, 0 for A; -1 where its name is not like \??\C:\folder. */
static int drive_of(HANDLE file) {
    struct {
        UNICODE_STRING name;
        WCHAR letters[1024];
    } object;
    if (query_object(file, OBJECT_NAME, &object, sizeof object, NULL) < 0) return -1;
    const WCHAR *name = object.name.Buffer;
    if (object.name.Length < 6 * sizeof *name || wcsncmp(name, L"\\??\\", 4) || name[5] != L':') return -1;
    int drive = (name[4] | 0x20) - L'a';
    return 0 <= drive && drive < DRIVES ? drive : -1;
}

static FILETIME file_time(LARGE_INTEGER ticks) {
    return (FILETIME){ticks.LowPart, (DWORD)ticks.HighPart};
}

static BOOL WINAPI file_information(HANDLE file, BY_HANDLE_FILE_INFORMATION *info) {
    static volatile DWORD serials[DRIVES];
    IO_STATUS_BLOCK status;
    basic_t basic;
    standard_t standard;
    LARGE_INTEGER number;
    int drive = drive_of(file);
    if (drive < 0 || !serials[drive]) {
        BOOL answered = ask_wine(file, info);
        if (answered && drive >= 0) serials[drive] = info->dwVolumeSerialNumber;
        return answered;
    }
    if (query_file(file, &status, &basic, sizeof basic, FILE_BASIC) < 0 ||
        query_file(file, &status, &standard, sizeof standard, FILE_STANDARD) < 0 ||
        query_file(file, &status, &number, sizeof number, FILE_INTERNAL) < 0)
        return ask_wine(file, info);
    *info = (BY_HANDLE_FILE_INFORMATION){
        .dwFileAttributes = basic.attributes,
        .ftCreationTime = file_time(basic.created),
        .ftLastAccessTime = file_time(basic.accessed),
        .ftLastWriteTime = file_time(basic.written),
        .dwVolumeSerialNumber = serials[drive],
        .nFileSizeHigh = (DWORD)standard.size.HighPart,
        .nFileSizeLow = standard.size.LowPart,
        .nNumberOfLinks = standard.links,
        .nFileIndexHigh = (DWORD)number.HighPart,
        .nFileIndexLow = number.LowPart,
    };
    return TRUE;
}

/* Where a loaded DLL keeps the address of a function that it imports. */
static void **import_of(HMODULE dll, const char *function) {
    char *base = (char *)dll;
    IMAGE_NT_HEADERS *headers = (IMAGE_NT_HEADERS *)(base + ((IMAGE_DOS_HEADER *)base)->e_lfanew);
    DWORD imports = headers->OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_IMPORT].VirtualAddress;
    for (IMAGE_IMPORT_DESCRIPTOR *from = (void *)(base + imports); from->Name; from++) {
        IMAGE_THUNK_DATA *name = (void *)(base + from->OriginalFirstThunk);
        IMAGE_THUNK_DATA *address = (void *)(base + from->FirstThunk);
        for (; name->u1.AddressOfData; name++, address++) {
            if (IMAGE_SNAP_BY_ORDINAL(name->u1.Ordinal)) continue;
            IMAGE_IMPORT_BY_NAME *import = (void *)(base + name->u1.AddressOfData);
            if (!strcmp((char *)import->Name, function)) return (void **)&address->u1.Function;
        }
    }
    return NULL;
}

void answer_for_wine(HMODULE python) {
    HMODULE ntdll = GetModuleHandleW(L"ntdll.dll");
    query_file = (void *)GetProcAddress(ntdll, "NtQueryInformationFile");
    query_object = (void *)GetProcAddress(ntdll, "NtQueryObject");
    void **import = import_of(python, "GetFileInformationByHandle");
    DWORD protection;
    if (!query_file || !query_object || !import) return;
    if (!VirtualProtect(import, sizeof *import, PAGE_READWRITE, &protection)) return;
    ask_wine = *import;
    *import = (void *)file_information;
    VirtualProtect(import, sizeof *import, protection, &protection);
}
